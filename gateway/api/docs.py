"""Serves the OpenAPI document and a page that shows it without loading from other hosts."""

from importlib.resources import files

from litestar import MediaType, Response, get
from litestar.di import NamedDependency

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sluicegate API</title>
<link rel="icon" href="data:,">
<script type="module" src="/docs/rapidoc.js"></script>
</head>
<body>
<rapi-doc spec-url="/openapi.json" load-fonts="false" theme="light" render-style="read"
  show-header="false" allow-server-selection="false" allow-authentication="true"
  primary-color="#0b6e6e" regular-font="system-ui, sans-serif" mono-font="ui-monospace, monospace"
  schema-description-expanded="true" persist-auth="false">
</rapi-doc>
<noscript>This page needs JavaScript; the document itself is at /openapi.json.</noscript>
</body>
</html>
"""
# What the page may load: itself, its script, and inline styles that the viewer makes.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self';"
    " img-src 'self' data:"
)


@get("/openapi.json", opt={"public": True}, include_in_schema=False, media_type=MediaType.JSON)
async def openapi_document(openapi: NamedDependency[bytes]) -> bytes:
    """Return the OpenAPI 3.1 document."""
    return openapi


@get("/docs", opt={"public": True}, include_in_schema=False, media_type=MediaType.HTML)
async def docs_page() -> Response[str]:
    """Return the page."""
    return Response(_PAGE, headers={"Content-Security-Policy": _POLICY})


@get("/docs/rapidoc.js", opt={"public": True}, include_in_schema=False)
async def docs_script() -> Response[bytes]:
    """Return the vendored viewer."""
    script = files("gateway.api").joinpath("static/rapidoc-min.js").read_bytes()
    return Response(
        script, media_type="text/javascript", headers={"Cache-Control": "public, max-age=86400"}
    )
