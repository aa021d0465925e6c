"""Serves the OpenAPI document and a page that shows it without loading from other hosts."""

import gzip
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.di import NamedDependency, Provide

from sluicegate.gateway.api.content_coding import accepted_coding

_STATIC = files("sluicegate.gateway.api").joinpath("static")
# What the page may load: itself, its script, and inline styles that the viewer makes.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
"""The headers of pages, beside those of all answers."""


def provide_document(build: Callable[[], bytes]) -> Provide:
    """Return what gives handlers the document that `build` returns.

    It is built when it is first requested, in a thread: that takes 0.1 to 0.2 s.
    """
    return Provide(lambda: build(), sync_to_thread=True, use_cache=True)  # noqa: PLW0108


@get("/openapi.json", opt={"public": True}, include_in_schema=False, media_type=MediaType.JSON)
async def openapi_document(openapi: NamedDependency[bytes]) -> bytes:
    """Return the OpenAPI 3.1 document."""
    return openapi


@get("/docs", opt={"public": True}, include_in_schema=False, media_type=MediaType.HTML)
async def docs_page() -> Response[bytes]:
    """Return the page."""
    page = _STATIC.joinpath("docs.html").read_bytes()
    return Response(page, headers=PAGE_HEADERS)


@get("/docs/scalar.js", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def docs_script(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the bundled viewer, Scalar 1.76.0, which is stored compressed."""
    script = _STATIC.joinpath("scalar.js.gz").read_bytes()
    headers = {"Cache-Control": "public, max-age=86400", "Vary": "Accept-Encoding"}
    accepted = request.headers.get("accept-encoding", "").encode("latin-1")
    if accepted_coding(accepted, ("gzip",)):
        headers["Content-Encoding"] = "gzip"
    else:
        script = gzip.decompress(script)
    return Response(script, media_type="text/javascript", headers=headers)
