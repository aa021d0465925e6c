"""Serves the pages at `/` and `/v1`: what this is, and where it is explained."""

from importlib.metadata import version
from typing import Any

from litestar import MediaType, Request, Response, get

from sluicegate.gateway.api.docs import PAGE_HEADERS

_LINKS = {
    "documentation": "/docs",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "usage": "/v1/usage",
    "health": "/health/ready",
}
_ABOUT = "Labels, choices, rankings, entities and vectors from small transformers, over HTTP."
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Sluicegate</title>
<style>body { font-family: sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em }</style>
<h1>Sluicegate</h1>
<p>%s</p>
<p>Version %s. Requests carry a key: <code>Authorization: Bearer &lt;key&gt;</code>.</p>
<ul>%s</ul>
</html>
"""


@get(["/", "/v1"], opt={"public": True}, include_in_schema=False)
async def home_page(request: Request[Any, Any, Any]) -> Response[Any]:
    """Return what this is, as a page to browsers and as JSON to others."""
    number = version("sluicegate")
    headers = {"Vary": "Accept", "Cache-Control": "public, max-age=300"}
    if "text/html" in request.headers.get("accept", ""):
        links = "".join(f'<li><a href="{path}">{name}</a></li>' for name, path in _LINKS.items())
        page = _PAGE % (_ABOUT, number, links)
        return Response(page, media_type=MediaType.HTML, headers=headers | PAGE_HEADERS)
    about = {"name": "Sluicegate", "description": _ABOUT, "version": number}
    return Response(about | {"links": _LINKS}, headers=headers)
