"""Sends raw HTTP/1.1 requests byte for byte and reads the responses."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from testing.waiting import WAIT_LIMIT

KEY = "sk-a-key-of-the-worker-under-test"
_END = b"\r\n\r\n"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body decoded."""
        return msgspec.json.decode(self.body)


class Connection:
    """A connection that sends exactly the given bytes."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reset()

    def close_half(self) -> None:
        """Close the sending side of the connection; the other side can still be read."""
        self._writer.write_eof()

    async def send_while_read(self, part: bytes, times: int) -> bool:
        """Send the part `times` times; return whether the worker read everything."""
        with contextlib.suppress(ConnectionError):
            for _ in range(times):
                if self._reader.at_eof():
                    return False
                self._writer.write(part)
                await self._writer.drain()
            return not self._reader.at_eof()
        return False

    def reset(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()

    async def send(self, *parts: bytes) -> None:
        """Send the parts one by one: the worker may read each before the next one comes."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return the status and headers of the next response."""
        async with asyncio.timeout(WAIT_LIMIT):
            text = (await self._reader.readuntil(_END)).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def response(self, *, to_head: bool = False) -> Response:
        """Return the next response, which must have a `Content-Length`."""
        status, headers = await self.head()
        length = 0 if to_head else int(headers["content-length"])
        async with asyncio.timeout(WAIT_LIMIT):
            body = await self._reader.readexactly(length)
        return Response(status=status, headers=headers, body=body)

    async def chunk(self) -> bytes:
        """Return the next chunk of a body; an empty one is the last."""
        async with asyncio.timeout(WAIT_LIMIT):
            length = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(length + 2))[:-2]

    async def is_closed(self) -> bool:
        """Return whether the worker closed the connection without sending more."""
        async with asyncio.timeout(WAIT_LIMIT):
            try:
                return await self._reader.read(1) == b""
            except ConnectionResetError:  # it closed while more was sent
                return True


def post(
    path: str,
    body: bytes | None,
    *,
    key: str = KEY,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a request. Without `body`, the headers must say how the body is sent."""
    lines = [f"{method} {path} HTTP/1.1", "host: worker", f"authorization: Bearer {key}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + _END + (body or b"")
