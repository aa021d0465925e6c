"""Adds an `ETag` to responses and answers `If-None-Match` (RFC 9110, 13.1.2)."""

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.status_codes import HTTP_304_NOT_MODIFIED
from xxhash import xxh3_64_hexdigest


def with_etag(request: Request[Any, Any, Any], answer: msgspec.Struct) -> Response[Any]:
    """Return `answer` with its `ETag`, or 304 where `If-None-Match` names it."""
    tag = f'"{xxh3_64_hexdigest(msgspec.json.encode(answer))}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    known = request.headers.get("if-none-match", "").split(",")
    tags = {name.strip().removeprefix("W/") for name in known}
    if tags & {tag, "*"}:
        return Response(content=None, status_code=HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(content=answer, headers=headers)
