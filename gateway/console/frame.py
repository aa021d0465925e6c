"""Renders the console's templates inside a common frame, and renders errors as pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Controller, MediaType, Response
from litestar.response import Redirect

from sluicegate.gateway.admin.authorization import OPERATOR
from sluicegate.gateway.api.error_handling import gateway_error
from sluicegate.gateway.console import amounts, prose
from sluicegate.gateway.console.access import LOGIN_COOKIE, SESSION, AnyRequest
from sluicegate.gateway.console.assets import Assets
from sluicegate.gateway.console.formats import FILTERS
from sluicegate.gateway.errors import AuthenticationFailed
from sluicegate.gateway.http.problem_details import problem_headers
from sluicegate.gateway.operations.families import FAMILIES
from sluicegate.gateway.operations.operators import Operator, Role
from sluicegate.gateway.periods import PERIODS

ROOT: Final = "/console"
LOGIN: Final = f"{ROOT}/login"
THEME_COOKIE: Final = "sluicegate_theme"
THEMES: Final = ("dark", "light")
_TEMPLATES = Path(__file__).parent / "templates"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    # The policy is not `no-referrer`, because browsers would then send forms with the origin
    # `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the console. Only operators with the page's role see the page."""

    title: str
    path: str
    role: Role
    controller: type[Controller]
    others: tuple[type[Controller], ...] = ()
    """Further controllers that serve parts of the page."""


class Frame:
    """Renders templates with the data that every page needs: navigation, operator and theme."""

    def __init__(self, *, assets: Assets, pages: Sequence[Page], region: str) -> None:
        self._pages = pages
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        operations = {
            each.description.id: each for family in FAMILIES for each in family.operations
        }
        self._environment.globals |= {
            "asset": assets.url,
            "region": region,
            "operations": operations,
            "PERIODS": PERIODS,
        }
        self._environment.filters |= FILTERS | amounts.FILTERS | prose.FILTERS

    def render(
        self,
        request: AnyRequest,
        template: str,
        context: Mapping[str, object],
        *,
        status: int = 200,
    ) -> Response[str]:
        """Return a response with the rendered template, which is a page or a fragment of a page."""
        text = self.text(request, template, context)
        return Response(text, status_code=status, media_type="text/html", headers=_HEADERS)

    def text(self, request: AnyRequest, template: str, context: Mapping[str, object]) -> str:
        """Render a template for the operator who sent the request, in the operator's theme."""
        state = request.scope["state"]
        operator: Operator | None = state.get(OPERATOR)
        session = state.get(SESSION)
        theme = request.cookies.get(THEME_COOKIE, "")
        shown = {
            "operator": operator,
            "may": operator.may if operator else lambda _: False,
            "pages": [page for page in self._pages if operator and operator.may(page.role)],
            "path": request.url.path.rstrip("/"),
            "theme": theme if theme in THEMES else "",
            "csrf": session.csrf_token if session else request.cookies.get(LOGIN_COOKIE, ""),
        }
        return self._environment.get_template(template).render(shown | dict(context))

    def problem(self, request: AnyRequest, error: Exception) -> Response[Any]:
        """Return an error as a page, or as a fragment if htmx sent the request.

        If the operator is not logged in, redirect to the login page.
        """
        is_fragment = request.headers.get("hx-request") == "true"
        known = gateway_error(error, str(request.scope["state"].get("request_id", "")))
        if isinstance(known, AuthenticationFailed):
            return _to_login(request, is_fragment=is_fragment)
        page = self.render(
            request,
            "_error.html" if is_fragment else "error.html",
            {"error": known},
            status=known.status,
        )
        for name, value in problem_headers(known):
            if name != b"content-type":
                page.set_header(name.decode(), value.decode())
        return page


def _to_login(request: AnyRequest, *, is_fragment: bool) -> Response[Any]:
    if is_fragment:  # otherwise htmx would insert the login form into the present page
        seen = urlsplit(request.headers.get("hx-current-url", ""))
        return htmx_redirect(_login_url(seen.path))
    path = request.url.path if request.method == "GET" else ""
    return Redirect(_login_url(path), status_code=303)


def htmx_redirect(url: str) -> Response[None]:
    """Return an answer without a body, upon which htmx opens another page."""
    # Without a media type the body would be the JSON text `null`.
    return Response(None, media_type=MediaType.HTML, headers={"HX-Redirect": url})


def _login_url(path: str) -> str:
    return f"{LOGIN}?to={quote(path, safe='/')}" if path.rstrip("/") not in {"", ROOT} else LOGIN
