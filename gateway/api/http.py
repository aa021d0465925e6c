"""The raw ASGI side of an inference route: header look-up, a bounded body, one answer."""

from collections.abc import Iterable

from litestar.types import Receive, Send

from gateway.errors import InvalidRequest, PayloadTooLarge

Headers = list[tuple[bytes, bytes]]


class ClientDisconnected(Exception):
    """The caller left before its body had arrived."""


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the value of the header `name` (lower case), empty when absent."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def check_length(headers: Headers, *, limit: int) -> None:
    """Refuse a body that says it will be longer than `limit` bytes.

    Raises:
        PayloadTooLarge: it says so.
        InvalidRequest: its length is no number.
    """
    declared = header(headers, b"content-length")
    if declared:
        if not declared.isdigit():
            raise InvalidRequest("`Content-Length` must be a number of bytes.")
        if int(declared) > limit:
            raise _too_large(limit)


async def read_body(receive: Receive, *, limit: int) -> bytes:
    """Return the request's body of at most `limit` bytes.

    Raises:
        PayloadTooLarge: it is longer.
        ClientDisconnected: the caller left.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _bounded(message["body"], limit)
    chunks: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        chunks.append(message["body"])
        size += len(message["body"])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()
    raise ClientDisconnected


async def respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send one complete answer."""
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _bounded(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body is larger than {limit} bytes; send the items in several requests."
    )
