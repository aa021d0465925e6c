"""Logs operators in with their keys, logs operators out, and stores the chosen theme."""

import re
import secrets
from typing import Final

import msgspec
from litestar import Controller, Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromQuery, URLEncodedBody
from litestar.response import Redirect

from sluicegate.gateway.console.access import (
    LOGIN_COOKIE,
    SESSION,
    SESSION_COOKIE,
    WITHOUT_SESSION,
    AnyRequest,
)
from sluicegate.gateway.console.frame import LOGIN, ROOT, THEME_COOKIE, THEMES, Frame
from sluicegate.gateway.console.login_limits import LoginLimiter
from sluicegate.gateway.console.sessions import LIFETIME, Sessions

_YEAR: Final = 365 * 86400
_MOST_BYTES: Final = 16 * 1024
"""The most bytes of a form. Forms are limited because anybody who reaches the listener can send
one."""
_OWN_PATH = re.compile(rf"{ROOT}(/[\w/.@%-]*)?", re.ASCII)


class LoginForm(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's key, and the path of the page to show after login."""

    key: str = ""
    to: str = ""


class ThemeForm(msgspec.Struct, frozen=True, kw_only=True):
    """The new theme, and the path of the page to return to.

    An empty theme is the system's theme.
    """

    theme: str = ""
    to: str = ""


class LoginController(Controller):
    """Opens and ends sessions, and changes the theme."""

    opt = WITHOUT_SESSION
    include_in_schema = False
    request_max_body_size = _MOST_BYTES

    @get("/login")
    async def form(
        self, request: AnyRequest, frame: NamedDependency[Frame], to: FromQuery[str] = ""
    ) -> Response[str]:
        """Return the login form."""
        return _form(request, frame, wanted=to, problem="")

    @post("/login", status_code=200)
    async def login(
        self,
        request: AnyRequest,
        data: URLEncodedBody[LoginForm],
        frame: NamedDependency[Frame],
        sessions: NamedDependency[Sessions],
        limiter: NamedDependency[LoginLimiter],
    ) -> Response[str] | Redirect:
        """Open a session and redirect to the page `to`. If the key is wrong, show the form again.

        Raises:
            RateLimited: the caller's IP address sent too many wrong keys.
        """
        address = request.client.host if request.client else ""
        limiter.check(address)
        cookie = await sessions.open(data.key.strip())
        if cookie is None:
            limiter.fail(address)
            problem = "No operator has this key."
            return _form(request, frame, wanted=data.to, problem=problem)
        sessions.close(request.cookies.get(SESSION_COOKIE, ""))
        answer = _go_to(data.to)
        answer.set_cookie(_cookie(request, SESSION_COOKIE, cookie, max_age=LIFETIME))
        answer.delete_cookie(LOGIN_COOKIE, path=ROOT)
        return answer

    @post("/logout", status_code=200)
    async def logout(self, request: AnyRequest, sessions: NamedDependency[Sessions]) -> Redirect:
        """End the session."""
        sessions.close(request.cookies.get(SESSION_COOKIE, ""))
        answer = Redirect(LOGIN, status_code=303)
        answer.delete_cookie(SESSION_COOKIE, path=ROOT)
        return answer

    @post("/theme", status_code=200)
    async def theme(self, request: AnyRequest, data: URLEncodedBody[ThemeForm]) -> Redirect:
        """Store the theme in a cookie."""
        answer = _go_to(data.to)
        theme = data.theme if data.theme in THEMES else ""
        answer.set_cookie(_cookie(request, THEME_COOKIE, theme, max_age=_YEAR if theme else 0))
        return answer


def _form(request: AnyRequest, frame: Frame, *, wanted: str, problem: str) -> Response[str]:
    status = 401 if problem else 200
    context = {"to": wanted, "problem": problem}
    if request.scope["state"].get(SESSION) is not None:  # the form uses the session's CSRF token
        return frame.render(request, "login.html", context, status=status)
    token = secrets.token_urlsafe(32)
    page = frame.render(request, "login.html", context | {"csrf": token}, status=status)
    page.set_cookie(_cookie(request, LOGIN_COOKIE, token, max_age=3600))
    return page


def _go_to(path: str) -> Redirect:
    where = path if _OWN_PATH.fullmatch(path) else ROOT
    return Redirect(where, status_code=303)


def _cookie(request: AnyRequest, name: str, value: str, *, max_age: int) -> Cookie:
    return Cookie(
        key=name,
        value=value,
        path=ROOT,
        max_age=max_age,
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )
