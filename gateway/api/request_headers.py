"""What a caller asks for in headers: a deadline, how the cache may be used, timings."""

import math
from collections.abc import Mapping

import msgspec

from gateway.config.document import DeadlineEntry
from gateway.errors import InvalidRequest
from gateway.types import CacheDirectives, Criticality

_NO_DIRECTIVES = CacheDirectives()
_BEARER = b"bearer "


class Asked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request's headers ask for; `allowed` is the seconds it may take."""

    allowed: float = 0.0
    directives: CacheDirectives = CacheDirectives()
    criticality: Criticality = Criticality.DEFAULT


NOTHING_ASKED = Asked()


def read_headers(headers: Mapping[bytes, bytes], deadline: DeadlineEntry) -> Asked:
    """Return what `headers`, by their names in lower case, ask for.

    Raises:
        InvalidRequest: one of them cannot be understood.
    """
    return Asked(
        allowed=time_allowed(headers.get(b"x-request-timeout", b""), deadline),
        directives=cache_directives(headers.get(b"cache-control", b"")),
        criticality=criticality(headers.get(b"sluicegate-criticality", b"")),
    )


def bearer_token(value: bytes) -> bytes:
    """Return the key of an `Authorization` header, empty when it holds none."""
    return value[7:].strip() if value[:7].lower() == _BEARER else b""


def time_allowed(value: bytes, deadline: DeadlineEntry) -> float:
    """Return the seconds a request may take: what `X-Request-Timeout` asks, up to the maximum.

    Raises:
        InvalidRequest: the header is no positive number of seconds.
    """
    if not value:
        return deadline.default
    try:
        asked = float(value)
    except ValueError:
        asked = math.nan
    if not 0 < asked < math.inf:
        raise InvalidRequest("`X-Request-Timeout` must be a positive number of seconds.")
    return min(asked, deadline.maximum)


def criticality(value: bytes) -> Criticality:
    """Return how important a request says it is.

    Raises:
        InvalidRequest: it is none of the three.
    """
    if not value:
        return Criticality.DEFAULT
    try:
        return Criticality(value.decode("latin-1").strip().lower())
    except ValueError:
        raise InvalidRequest(
            "`Sluicegate-Criticality` must be `critical`, `default` or `sheddable`."
        ) from None


def cache_directives(value: bytes) -> CacheDirectives:
    """Return what `Cache-Control` asks; unknown directives are ignored, as RFC 9111 demands.

    Raises:
        InvalidRequest: `max-age` is no number of seconds.
    """
    if not value:
        return _NO_DIRECTIVES
    names: dict[str, str] = {}
    for part in value.decode("latin-1").lower().split(","):
        name, _, argument = part.partition("=")
        names[name.strip()] = argument.strip().strip('"')
    max_age = names.get("max-age")
    if max_age is not None and not (max_age.isascii() and max_age.isdigit()):
        raise InvalidRequest("`max-age` in `Cache-Control` must be a number of seconds.")
    return CacheDirectives(
        no_cache="no-cache" in names,
        no_store="no-store" in names,
        only_if_cached="only-if-cached" in names,
        max_age=None if max_age is None else float(max_age),
    )
