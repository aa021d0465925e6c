"""Writes frames of HTTP/2 by hand, as no well-behaved client would."""

import asyncio
import contextlib
import struct
from collections.abc import Iterable
from typing import NamedTuple, Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 9
WINDOW_UPDATE = 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4


class Frame(NamedTuple):
    """A frame that arrived."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """Return a header field in HPACK, without index and without Huffman's code."""
    return b"\x00" + _string(name) + _string(value)


def call_head(method: str, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the block of a call's head."""
    own = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "a")]
    own += [("te", "trailers"), ("content-type", "application/grpc")]
    return b"".join([literal(*each) for each in (*own, *extra)])


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest, size = len(raw) - 127, b"\x7f"
    while rest >= 128:
        size, rest = size + bytes([rest & 127 | 128]), rest >> 7
    return size + bytes([rest]) + raw


class RawHttp2:
    """A connection that sends what it is told to, and reads frames."""

    def __init__(self, port: int, *, greets: bool = True) -> None:
        self._port = port
        self._greets = greets

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        if self._greets:
            self.writer.write(PREFACE + frame(SETTINGS))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def send(self, *frames: bytes) -> bool:
        """Send frames; return false where the other side has closed the connection."""
        try:
            self.writer.write(b"".join(frames))
            await self.writer.drain()
        except OSError:
            return False
        return not self.writer.transport.is_closing()

    async def receive(self) -> Frame | None:
        """Return the next frame, `None` at the end of the connection."""
        try:
            head = await self.reader.readexactly(9)
            size = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            return Frame(kind, flags, stream, await self.reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def until_closed(self) -> list[Frame]:
        """Return all frames until the other side closes the connection."""
        found = []
        while (one := await self.receive()) is not None:
            found.append(one)
        return found
