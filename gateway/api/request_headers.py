"""Parses the request headers that set timeout, cache use and criticality."""

import math
from collections.abc import Mapping

import msgspec

from sluicegate.gateway.config.document import DeadlineConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.types import CacheDirectives, Criticality

_NO_DIRECTIVES = CacheDirectives()


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds the options in a request's headers; `allowed` is the seconds it may take."""

    allowed: float = 0.0
    directives: CacheDirectives = CacheDirectives()
    criticality: Criticality = Criticality.DEFAULT


NO_OPTIONS = RequestOptions()


def parse_request_options(
    headers: Mapping[bytes, bytes], deadline: DeadlineConfig
) -> RequestOptions:
    """Return the options in `headers`, whose names are in lower case.

    Raises:
        InvalidRequest: one of them is malformed.
    """
    return RequestOptions(
        allowed=parse_timeout(headers.get(b"x-request-timeout"), deadline),
        directives=parse_cache_control(headers.get(b"cache-control", b"")),
        criticality=parse_criticality(headers.get(b"sluicegate-criticality")),
    )


def parse_timeout(value: bytes | None, deadline: DeadlineConfig) -> float:
    """Return the seconds a request may take: `X-Request-Timeout`, up to the maximum.

    Raises:
        InvalidRequest: the header is there and no positive number of seconds.
    """
    if value is None:
        return deadline.default
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequest("`X-Request-Timeout` must be a positive number of seconds.")
    return min(seconds, deadline.maximum)


def parse_criticality(value: bytes | None) -> Criticality:
    """Return the criticality of a request.

    Raises:
        InvalidRequest: the header is there and none of the three.
    """
    if value is None:
        return Criticality.DEFAULT
    try:
        return Criticality(value.decode("latin-1").strip().lower())
    except ValueError:
        raise InvalidRequest(
            "`Sluicegate-Criticality` must be `critical`, `default` or `sheddable`."
        ) from None


def parse_cache_control(value: bytes) -> CacheDirectives:
    """Return the directives of `Cache-Control`; unknown ones are ignored (RFC 9111, 5.2.3).

    Raises:
        InvalidRequest: `max-age` or `max-stale` is no number of seconds.
    """
    if not value:
        return _NO_DIRECTIVES
    names: dict[str, str] = {}
    for part in value.decode("latin-1").lower().split(","):
        name, _, argument = part.partition("=")
        names[name.strip()] = argument.strip().strip('"')
    # Without a time any staleness is accepted.
    is_any = names.get("max-stale") == ""
    return CacheDirectives(
        no_cache="no-cache" in names,
        no_store="no-store" in names,
        only_if_cached="only-if-cached" in names,
        max_age=_seconds(names, "max-age"),
        max_stale=math.inf if is_any else _seconds(names, "max-stale"),
    )


def _seconds(directives: Mapping[str, str], name: str) -> float | None:
    value = directives.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest(f"`{name}` in `Cache-Control` must be a number of seconds.")
    return float(value)
