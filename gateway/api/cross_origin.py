"""Lets pages of allowed origins use the API (CORS), and holds keys to their origins and routes.

`CrossOriginRequests` does so before the application; the fast path asks `CrossOrigin` once for each
head. Credentials of browsers are never allowed: callers send a key.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from gateway.api.error_format import ErrorFormat
from gateway.api.http import Headers, HttpReply, respond
from gateway.api.key_rights import covers
from gateway.api.problem_replies import problem_reply
from gateway.auth.bearer import find_bearer_token
from gateway.auth.key_ring import KeyRing
from gateway.config.checks import ANY_ORIGIN
from gateway.errors import PermissionDenied
from gateway.runtime.store import RuntimeStore
from gateway.types import Principal, RequestId

EXPOSED: Final = (
    *("X-Request-Id", "X-Client-Request-Id", "Retry-After", "retry-after-ms", "x-should-retry"),
    *(
        "RateLimit",
        "RateLimit-Policy",
        "Cache-Status",
        "Age",
        "Sluicegate-Rows",
        "Sluicegate-Vectors",
    ),
    *("Idempotency-Replayed", "Server-Timing", "ETag"),
)
"""The headers of answers that pages may read, beside those that they always may."""
_TENANTS: Final = ("/v1/keys", "/v1/files", "/v1/batches", "/v1/requests", "/v1/usage")
"""Routes to a tenant's account, which a key in a page has only where its own routes name them."""
_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")
_SLASHES: Final = re.compile("//+")
_VARY: Final = b"Origin"
_VARY_OF_PREFLIGHT: Final = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"


class CrossOrigin:
    """Decides by the document and by keys which origins are allowed, and what keys may do."""

    def __init__(self, *, runtimes: RuntimeStore, keys: KeyRing) -> None:
        self._runtimes = runtimes
        self._keys = keys

    def headers(self, origin: bytes, principal: Principal | None) -> Headers:
        """Return what an answer to a page of `origin` says of it.

        To a caller without a key it is what anybody would be told.
        """
        headers = [(b"vary", _VARY)]
        if allowed := self._allowed(origin.decode("latin-1"), principal):
            headers.append((b"access-control-allow-origin", allowed.encode()))
            headers.append((b"access-control-expose-headers", ", ".join(EXPOSED).encode()))
        return headers

    def lines(self, origin: bytes, principal: Principal | None) -> bytes:
        """Return the same as header lines; nothing without an origin."""
        if not origin:
            return b""
        return b"".join([b"%b: %b\r\n" % header for header in self.headers(origin, principal)])

    def check(self, principal: Principal, path: str, origin: bytes) -> None:
        """Check a request against the bounds of its key.

        Raises:
            PermissionDenied: the key is for other origins or routes.
        """
        if principal.routes is not None and not any(
            covers(route, path) for route in principal.routes
        ):
            raise PermissionDenied("This key may not be used for this route.")
        if principal.origins is not None and origin.decode("latin-1") not in principal.origins:
            raise PermissionDenied("This key may only be used from pages of its own origins.")
        if principal.origins is not None and not _names(principal.routes or (), path):
            raise PermissionDenied(
                "This key is for pages, which anybody can read: it may be used for the tenant's"
                " account only where its routes name this one."
            )

    def preflight(self, origin: bytes, asked: bytes) -> HttpReply | None:
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
        headers = [
            (b"vary", _VARY_OF_PREFLIGHT),
            (b"access-control-allow-origin", allowed.encode()),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"%d" % cors.max_age),
        ]
        # Whatever is asked for: the header `Authorization` alone gives rights.
        if asked and _HEADER_NAMES.fullmatch(asked):
            headers.append((b"access-control-allow-headers", asked))
        return HttpReply(204, b"".join([b"%b: %b\r\n" % header for header in headers]), b"")

    @property
    def has_bounds(self) -> bool:
        """Whether some key is limited to origins or routes."""
        return self._keys.has_bounds

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


class CrossOriginRequests:
    """Passes requests to `app`, and adds to the answers what their pages need to read them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        rules: CrossOrigin,
        keys: KeyRing,
        errors_of: Callable[[str], ErrorFormat],
        new_id: Callable[[], RequestId],
    ) -> None:
        self._app = app
        self._rules = rules
        self._keys = keys
        self._errors_of = errors_of
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        origin = next((value for name, value in headers if name == b"origin"), b"")
        if not (origin or self._rules.has_bounds):
            await self._app(scope, receive, send)
            return
        principal = self._keys.find(find_bearer_token(headers))
        if origin:
            scope, send = _readable(scope, send, self._rules.headers(origin, principal))
        try:
            reply = self._preflight(scope, origin)
            if reply is None and principal is not None:
                self._rules.check(principal, scope["path"], origin)
        except PermissionDenied as error:
            errors = self._errors_of(scope["path"])
            reply = problem_reply(error, self._new_id(), errors=errors)
        if reply is None:
            await self._app(scope, receive, send)
        else:
            await respond(send, reply)

    def _preflight(self, scope: HTTPScope, origin: bytes) -> HttpReply | None:
        headers = dict(scope["headers"])
        if scope["method"] != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        return self._rules.preflight(origin, headers.get(b"access-control-request-headers", b""))


def _names(routes: Iterable[str], path: str) -> bool:
    """Return whether `path` is no route to the tenant's account, or one that `routes` name."""
    path = _SLASHES.sub("/", path)  # as the application reads it
    account = next((each for each in _TENANTS if f"{path}/".startswith(f"{each}/")), "")
    return not account or any(r.startswith(account) and covers(r, path) for r in routes)


def _readable(scope: HTTPScope, send: Send, headers: Headers) -> tuple[HTTPScope, Send]:
    """Return a scope whose answers are messages, and a `send` that adds `headers` to them."""
    copied = scope.copy()
    copied["extensions"] = {}

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            # A preflight says itself what it varies by.
            is_preflight = any(
                name == b"access-control-allow-methods" for name, _ in message["headers"]
            )
            own = [] if is_preflight else headers
            message["headers"] = [*message["headers"], *own]
        await send(message)

    return copied, send_with_headers
