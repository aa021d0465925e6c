"""Defines the shapes of ASGI, and the lines that answers share."""

import http
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

# The shapes that ASGI itself defines.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

CLOSE: Final = b"connection: close\r\n"
"""The header line of an answer that ends its connection."""


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINE: Final = {status: _status_line(status) for status in range(100, 600)}


def header_lines(headers: Headers) -> bytes:
    """Return headers as they are sent."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def answer_head(
    status: int, lines: bytes, length: int, default_lines: bytes = b"", *, is_last: bool = False
) -> bytes:
    """Return the head of an answer whose body has `length` bytes.

    `default_lines` come before its own `lines`. The last answer of a connection says so.
    """
    return b"%b%b%bcontent-length: %d\r\n%b\r\n" % (
        STATUS_LINE[status],
        default_lines,
        lines,
        length,
        CLOSE if is_last else b"",
    )
