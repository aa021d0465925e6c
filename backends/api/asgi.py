"""Reads requests by ASGI."""

from sluicegate.backends.errors import BadCall, CallTooLarge
from sluicegate.wire.http.messages import Headers, Receive, Scope


class ClientGone(Exception):
    """Reports that the client closed the connection before its body arrived."""


def find_header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of this lower-case name."""
    headers: Headers = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return None


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        CallTooLarge: it, or its `Content-Length`, is over the limit.
        BadCall: its length is no number.
        ClientGone: the client disconnected.
    """
    length = find_header(scope, b"content-length")
    if length is not None:
        if not length.isdigit():
            raise BadCall("`Content-Length` is no number")
        # Without the zeros before it: Python reads no more than 4,300 digits.
        if int(length.lstrip(b"0") or b"0") > max_bytes:
            raise CallTooLarge(f"the body is over {max_bytes} bytes; send fewer items")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise CallTooLarge(f"the body is over {max_bytes} bytes; send fewer items")
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
