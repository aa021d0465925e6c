"""Lets only operators with a session and the role into the console, and only from its own pages."""

import hmac
from typing import Any
from urllib.parse import urlsplit

from litestar import Request
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from gateway.admin.authorization import OPERATOR
from gateway.admin.operators import Operator, Role, required_role
from gateway.console.sessions import Session, Sessions
from gateway.errors import AuthenticationFailed, PermissionDenied
from gateway.http.connection_timeouts import HAS_CERTIFICATE

SESSION_COOKIE = "sluicegate_console"
LOGIN_COOKIE = "sluicegate_login"
"""Holds the token of the form that logs in, as there is no session yet."""
TOKEN_FIELD, TOKEN_HEADER = "csrf", "x-csrf-token"
SESSION = "session"
"""The key of a request's state where its session is."""
PUBLIC = {"public": True}
"""Tells the listener's own check that this one decides: it wants a key in every request."""
WITHOUT_SESSION = {"without_session": True}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORMS = "application/x-www-form-urlencoded"

AnyRequest = Request[Any, Any, Any]


class ConsoleAccess(ASGIMiddleware):
    """Puts session and operator into the state of a request, or refuses it.

    A route says what it needs by `opt={"role": Role.OPERATOR}`; without it GET needs VIEWER,
    everything else ADMIN. Requests that change something must come from a page of the console.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, *, sessions: Sessions, wants_certificate: bool) -> None:
        self._sessions = sessions
        self._wants_certificate = wants_certificate

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on, or refuse it."""
        request: AnyRequest = Request(scope, receive=receive)
        opt = scope["route_handler"].opt
        if self._wants_certificate and not scope["state"].get(HAS_CERTIFICATE):
            raise PermissionDenied("A client certificate is missing: connect with one.")
        found = await self._sessions.find(request.cookies.get(SESSION_COOKIE, ""))
        if found is not None:
            scope["state"][SESSION], scope["state"][OPERATOR] = found
        if not opt.get("without_session"):
            _check_role(found, required_role(request.method, opt))
        if request.method not in _SAFE:
            check_origin(request)
            await _check_token(request, found)
        await next_app(scope, receive, send)


def _check_role(found: tuple[Session, Operator] | None, role: Role) -> None:
    if found is None:
        raise AuthenticationFailed("Log in first.")
    operator = found[1]
    if not operator.may(role):
        raise PermissionDenied(f"`{operator.name}` lacks the role `{role}`; log in as another.")


def check_origin(request: AnyRequest) -> None:
    """Check that a page of this host sent the request, by what browsers say of it.

    Raises:
        PermissionDenied: another page did, or the client does not say.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    is_own = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not (is_own or (origin is None and site == "same-origin")) or site not in {
        None,
        "same-origin",
    }:
        raise PermissionDenied("The request comes from another page than the console's.")


async def _check_token(request: AnyRequest, found: tuple[Session, Operator] | None) -> None:
    expected = found[0].csrf_token if found else request.cookies.get(LOGIN_COOKIE, "")
    token = request.headers.get(TOKEN_HEADER, "")
    if not token and request.headers.get("content-type", "").startswith(_FORMS):
        token = str((await request.form()).get(TOKEN_FIELD, ""))
    if not expected or not hmac.compare_digest(token.encode(), expected.encode()):
        raise PermissionDenied("The page is too old; load it again and repeat what you did.")
