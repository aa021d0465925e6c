"""Reads responses from a byte stream, strictly by RFC 9112."""

import re

from loadtests.fuzz_http.expect import (
    CONTINUE,
    NO_CONTENT,
    NOT_MODIFIED,
    Response,
    UnexpectedResponse,
)

_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n\x00]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*)")


class ResponseReader:
    """Splits a byte stream into responses."""

    def __init__(self) -> None:
        self._buffer = b""

    @property
    def rest(self) -> bytes:
        """The bytes that belong to no whole response yet."""
        return self._buffer

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer = self._buffer + data if self._buffer else data

    def next(self, *, to_head: bool) -> Response | None:
        """Return the next response without 1xx ones, `None` while it is incomplete.

        Raises:
            Wrong: the bytes are no response.
        """
        while (end := self._buffer.find(_END)) >= 0:
            status, headers = _head(self._buffer[:end])
            start = end + len(_END)
            if CONTINUE <= status < 200:
                self._buffer = self._buffer[start:]
                continue
            size = 0 if to_head or status in (NO_CONTENT, NOT_MODIFIED) else _length(headers)
            if len(self._buffer) < start + size:
                return None
            body = self._buffer[start : start + size]
            self._buffer = self._buffer[start + size :]
            return Response(status=status, headers=headers, body=body)
        if self._buffer and not b"HTTP/1.1 ".startswith(self._buffer[:9]):
            raise UnexpectedResponse(f"no response begins with {self._buffer[:40]!r}")
        return None


def _head(text: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = text.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise UnexpectedResponse(f"no status line: {first[:60]!r}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise UnexpectedResponse(f"no field: {line[:60]!r}")
        name = field.group(1).lower()
        if name in headers and name in (b"content-length", b"x-request-id", b"content-type"):
            raise UnexpectedResponse(f"the field {name!r} is there twice")
        headers[name] = field.group(2)
    return int(status.group(1)), headers


def _length(headers: dict[bytes, bytes]) -> int:
    if b"transfer-encoding" in headers:
        raise UnexpectedResponse("a response of a known length is chunked")
    length = headers.get(b"content-length", b"")
    if not length.isdigit():
        raise UnexpectedResponse("a response does not say its length")
    return int(length)
