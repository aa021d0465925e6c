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
