"""Lets pages of allowed origins use the API (CORS), and holds keys to their origins and routes.

Credentials of browsers are never allowed: callers send a key.
"""

import re
from collections.abc import Iterable
from typing import Final

from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.incoming_request import IncomingRequest
from sluicegate.gateway.api.key_rights import covers
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.config.checks import ANY_ORIGIN
from sluicegate.gateway.errors import PermissionDenied
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import Principal

_ALLOWED: Final = (
    b"access-control-allow-origin: %b\r\n"
    b"access-control-expose-headers: X-Request-Id, X-Client-Request-Id, Retry-After,"
    b" retry-after-ms, x-should-retry, RateLimit, RateLimit-Policy, Cache-Status, Age,"
    b" Sluicegate-Rows, Sluicegate-Vectors, Idempotency-Replayed, Server-Timing, ETag\r\n"
)
"""Names the headers of answers that pages may read, beside those that they always may."""
_PREFLIGHT: Final = (
    b"vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\n"
    b"access-control-allow-origin: %b\r\n"
    b"access-control-allow-methods: GET, HEAD, POST, PUT, PATCH, DELETE\r\n"
    b"access-control-max-age: %d\r\n"
)
_TENANTS: Final = ("/v1/keys", "/v1/files", "/v1/batches", "/v1/requests", "/v1/usage")
"""Routes to a tenant's account, which a key in a page has only where its own routes name them."""
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")
_SLASHES: Final = re.compile("//+")


class CrossOrigin:
    """Decides by the document and by keys which origins are allowed, and what keys may do."""

    def __init__(self, *, runtimes: RuntimeStore, keys: KeyRing) -> None:
        self._runtimes = runtimes
        self._keys = keys

    def answer_early(self, request: IncomingRequest) -> HttpReply | None:
        """Note in `request.added_lines` what its page is told. Return the answer to a preflight.

        Raises:
            PermissionDenied: the key or the page may not make the request.
        """
        origin = request.fields.get(b"origin", b"")
        if not (origin or self._keys.has_bounds):
            return None
        if origin:
            request.added_lines = self._lines(origin, request.principal)
        if request.method == "OPTIONS" and b"access-control-request-method" in request.fields:
            asked = request.fields.get(b"access-control-request-headers", b"")
            if (reply := self._preflight(origin, asked)) is not None:
                request.added_lines = b""  # the answer says itself what it varies by
                return reply
        if request.principal is not None:
            self.check(request.principal, request.path, origin)
        return None

    def check(self, principal: Principal, path: str, origin: bytes) -> None:
        """Check a request against the bounds of its key.

        Raises:
            PermissionDenied: the key is for other origins or routes.
        """
        if principal.routes is not None and not any(
            covers(route, path) for route in principal.routes
        ):
            raise PermissionDenied("This key may not be used for this route.")
        if principal.origins is None:
            return
        if origin.decode("latin-1") not in principal.origins:
            raise PermissionDenied("This key may only be used from pages of its own origins.")
        if not _names(principal.routes or (), path):
            raise PermissionDenied(
                "This key is for pages, which anybody can read: it may be used for the tenant's"
                " account only where its routes name this one."
            )

    def _lines(self, origin: bytes, principal: Principal | None) -> bytes:
        """Return the header lines of an answer to a page of `origin`.

        Without a key, an origin is allowed if it is allowed for any tenant or any key.
        """
        allowed = self._allowed(origin.decode("latin-1"), principal)
        return b"vary: Origin\r\n" + (_ALLOWED % allowed.encode() if allowed else b"")

    def _preflight(self, origin: bytes, asked: bytes) -> HttpReply | None:
        """Return the answer to a preflight, which has no key; `asked` are names of headers.

        `None` where no origin is allowed.
        """
        cors = self._runtimes.current.document.cors
        if not (cors.origins or cors.tenants or self._keys.origins):
            return None
        allowed = self._allowed(origin.decode("latin-1"), None)
        if not allowed:
            raise PermissionDenied(
                "Pages of this origin may not use the API; operators allow origins in the section"
                " `cors` of the configuration, or by a key."
            )
        lines = _PREFLIGHT % (allowed.encode(), cors.max_age)
        # Whatever is asked for: the header `Authorization` alone gives rights.
        if asked and _HEADER_NAMES.fullmatch(asked):
            lines += b"access-control-allow-headers: %b\r\n" % asked
        return HttpReply(204, lines, b"")

    def _allowed(self, origin: str, principal: Principal | None) -> str:
        """Return the origin that an answer names, empty where the page may not read it."""
        cors = self._runtimes.current.document.cors
        if principal is not None and principal.origins is not None:
            return origin if origin in principal.origins else ""
        if ANY_ORIGIN in cors.origins:
            return ANY_ORIGIN
        if origin in cors.origins:
            return origin
        if principal is not None:
            return origin if origin in cors.tenants.get(principal.tenant, ()) else ""
        is_somebodys = origin in self._keys.origins or any(
            origin in origins for origins in cors.tenants.values()
        )
        return origin if is_somebodys else ""


def _names(routes: Iterable[str], path: str) -> bool:
    """Return whether `path` is no route to the tenant's account, or one that `routes` name."""
    path = _SLASHES.sub("/", path)  # as the application reads it
    account = next((each for each in _TENANTS if f"{path}/".startswith(f"{each}/")), "")
    return not account or any(r.startswith(account) and covers(r, path) for r in routes)
