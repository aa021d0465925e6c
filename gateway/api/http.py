"""Reads requests and sends responses of inference routes over raw ASGI."""

from typing import Final

import msgspec
from litestar.types import Send

from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge

Headers = list[tuple[bytes, bytes]]
_NO_CONTENT: Final = 204


class ClientDisconnected(Exception):
    """Signals that the client disconnected before its body had arrived."""


def headers_by_name(headers: Headers) -> dict[bytes, bytes]:
    """Return the first value of each header; names must be in lower case.

    Lines of `Cache-Control` are joined to one list (RFC 9110, 5.3). Several `Authorization` headers
    are ambiguous, and count as none.
    """
    values = dict(reversed(headers))
    if len(values) < len(headers):
        directives = [value for name, value in headers if name == b"cache-control"]
        if directives:
            values[b"cache-control"] = b", ".join(directives)
        if len([name for name, _ in headers if name == b"authorization"]) > 1:
            values[b"authorization"] = b""
    return values


def check_length(declared: bytes, *, limit: int) -> None:
    """Refuse a body whose `declared` length, if any, is more than `limit` bytes.

    Raises:
        PayloadTooLarge: it is.
        InvalidRequest: its length is no number.
    """
    if declared:
        if not declared.isdigit():
            raise InvalidRequest("`Content-Length` must be a number of bytes.")
        # Without the zeros before it: Python reads no more than 4,300 digits.
        if int(declared.lstrip(b"0") or b"0") > limit:
            raise too_large(limit)


class HttpReply(msgspec.Struct, frozen=True, gc=False):
    """Holds a complete response; `lines` are its headers but the length, each ended by CRLF."""

    status: int
    lines: bytes
    body: bytes

    def with_lines(self, lines: bytes) -> "HttpReply":
        """Return the response with further header lines."""
        return HttpReply(self.status, self.lines + lines, self.body) if lines else self


def bounded(body: bytes, *, limit: int) -> bytes:
    """Return `body`.

    Raises:
        PayloadTooLarge: it is longer than `limit` bytes.
    """
    if len(body) > limit:
        raise too_large(limit)
    return body


async def respond(send: Send, reply: HttpReply) -> None:
    """Send one complete response."""
    headers = header_fields(reply.lines)
    if reply.status != _NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


def header_fields(lines: bytes) -> Headers:
    """Return the names and values of header lines."""
    fields: Headers = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        fields.append((name, value))
    return fields


def too_large(limit: int) -> PayloadTooLarge:
    """Return the error of a body of more than `limit` bytes."""
    return PayloadTooLarge(
        f"The body is larger than {limit} bytes; send the items in several requests."
    )
