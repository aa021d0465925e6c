"""Encodes errors as RFC 9457 problem documents. A dialect may write errors in another format."""

import math
from typing import Annotated, Any, Final

import msgspec

from sluicegate.gateway.errors import (
    MAX_RETRY_AFTER,
    AuthenticationFailed,
    ConfigurationError,
    GatewayError,
    InvalidItem,
    MethodNotAllowed,
    RequestTimeout,
    UnsupportedContentCoding,
)
from sluicegate.wire.http.messages import header_lines
from sluicegate.wire.settings import stated

MEDIA_TYPE: Final = b"application/problem+json"
Headers = list[tuple[bytes, bytes]]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem's body; fields beyond RFC 9457's are only sent where they say something."""

    type: str
    """A URN that ends in the code."""
    title: str
    """The code in words."""
    status: Annotated[int, stated(minimum=400, maximum=599)]
    """The status of the answer."""
    code: str
    """What programs should look at; it is stable."""
    detail: str
    """What was wrong, and what to do."""
    request_id: str = ""
    """Names the request in logs; the same as `X-Request-Id`."""
    index: int | None = None
    """The item that is to blame."""
    item_code: str = ""
    """Why that item cannot be answered."""
    file: str | None = None
    """The file of a configuration that is refused."""
    line: int | None = None
    """The line of that file."""
    field: str = ""
    """The field that is refused."""


def problem(error: GatewayError, request_id: str) -> Problem:
    """Return the problem document of `error`."""
    item = error if isinstance(error, InvalidItem) else None
    document = error if isinstance(error, ConfigurationError) else None
    return Problem(
        type=f"urn:sluicegate:error:{error.code}",
        title=error.title,
        status=error.status,
        code=error.code,
        detail=error.detail,
        request_id=request_id,
        index=item.index if item else None,
        item_code=item.item_code if item else "",
        file=document.file if document else None,
        line=document.line if document else None,
        field=document.field if document else "",
    )


def problem_headers(error: GatewayError) -> Headers:
    """Return the headers that go with `error`: `Retry-After` and `WWW-Authenticate`."""
    headers: Headers = []
    if error.retry_after is not None:
        seconds = min(max(0.0, error.retry_after), MAX_RETRY_AFTER)
        headers.append((b"retry-after", str(max(1, math.ceil(seconds))).encode()))
        headers.append((b"retry-after-ms", str(math.ceil(seconds * 1000)).encode()))
    if isinstance(error, UnsupportedContentCoding):
        headers.append((b"accept-encoding", b"gzip, deflate, zstd"))
    if isinstance(error, AuthenticationFailed):
        headers.append((b"www-authenticate", b'Bearer realm="sluicegate"'))
    return headers


def problem_lines(error: GatewayError) -> bytes:
    """Return the header lines of an inference route's response to a request that failed.

    What the body is, each route says for itself.
    """
    headers = problem_headers(error)
    headers.append((b"cache-status", b"sluicegate; fwd=bypass"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", b"POST"))
    if isinstance(error, RequestTimeout):
        headers.append((b"connection", b"close"))  # the rest of the body is no request
    return header_lines(headers)


def encode_problem(error: GatewayError, request_id: str) -> bytes:
    """Return the problem document of `error` as JSON."""
    return msgspec.json.encode(problem(error, request_id))


class ErrorFormat:
    """Writes errors as problem documents (RFC 9457). Dialects write theirs in subclasses."""

    media = MEDIA_TYPE.decode()
    type: Any = Problem
    """The type of the body, for the OpenAPI document."""

    def status(self, error: GatewayError) -> int:
        """Return the status that reports `error`, which may be its class in an example."""
        return error.status

    def encode(self, error: GatewayError, request_id: str) -> bytes:
        """Return the body that reports `error`."""
        return encode_problem(error, request_id)


PROBLEMS = ErrorFormat()
