"""Checks the session, the role and the origin of every request to the console."""

import hmac
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from litestar import Request
from litestar.di import NamedDependency
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.params import SkipValidation
from litestar.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from sluicegate.gateway.admin.authorization import OPERATOR
from sluicegate.gateway.console.sessions import Session, Sessions
from sluicegate.gateway.errors import AuthenticationFailed, PermissionDenied
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.operators import Operator, Role, required_role
from sluicegate.wire.http.connection import HAS_CERTIFICATE

SESSION_COOKIE = "sluicegate_console"
LOGIN_COOKIE = "sluicegate_login"
"""The name of the cookie that holds the login form's CSRF token. Before the login, there is no
session to hold this token."""
TOKEN_FIELD, TOKEN_HEADER = "csrf", "x-csrf-token"
SESSION = "session"
"""The key under which a request's state holds the session."""
PUBLIC = {"public": True}
"""Exempts the console's routes from `AdminAccess`, which would require a key in every request."""
WITHOUT_SESSION = {"without_session": True}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORMS = "application/x-www-form-urlencoded"

AnyRequest = Request[Any, Any, Any]
Context: TypeAlias = NamedDependency[SkipValidation[OperationContext]]
"""The context for the operations that a handler carries out."""


class ConsoleAccess(ASGIMiddleware):
    """Checks each request to the console. Refuses it, or stores its session and operator in it.

    A route names the role that it requires with `opt={"role": Role.OPERATOR}`. The default is
    VIEWER for GET, and ADMIN for all other methods. Every request except GET must come from a page
    of the console.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, *, sessions: Sessions, wants_certificate: bool) -> None:
        self._sessions = sessions
        self._wants_certificate = wants_certificate

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on to `next_app`, or refuse the request."""
        request: AnyRequest = Request(scope, receive=receive)
        opt = scope["route_handler"].opt
        if self._wants_certificate and not scope["state"].get(HAS_CERTIFICATE):
            raise PermissionDenied("Your browser sent no client certificate. Install one in it.")
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
        raise PermissionDenied(
            f"`{operator.name}` lacks the role `{role}`. Log in as an operator who has it."
        )


def check_origin(request: AnyRequest) -> None:
    """Check with `Origin` and `Sec-Fetch-Site` that a page of this host sent the request.

    Raises:
        PermissionDenied: a page of another host sent the request, or both headers are missing.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    is_own = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not (is_own or (origin is None and site == "same-origin")) or site not in {
        None,
        "same-origin",
    }:
        raise PermissionDenied("The request does not come from a page of this console.")


async def _check_token(request: AnyRequest, found: tuple[Session, Operator] | None) -> None:
    expected = found[0].csrf_token if found else request.cookies.get(LOGIN_COOKIE, "")
    token = request.headers.get(TOKEN_HEADER, "")
    if not token and request.headers.get("content-type", "").startswith(_FORMS):
        token = str((await request.form()).get(TOKEN_FIELD, ""))
    if not expected or not hmac.compare_digest(token.encode(), expected.encode()):
        raise PermissionDenied("This page is out of date. Reload it and try again.")
