"""Sends raw HTTP/1.1 requests byte for byte and reads the responses, strictly by RFC 9112."""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self, SupportsIndex

import msgspec
from typing_extensions import override

from testing.waiting import WAIT_LIMIT

KEY = "sk-a-key-of-the-worker-under-test"
_END = b"\r\n\r\n"
_STATUS = re.compile(r"HTTP/1\.1 (\d{3}) [^\r\n\x00]*")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*)")
_ONLY_ONCE = ("content-length", "x-request-id", "content-type")
_KEPT = 4096


class MalformedResponse(Exception):
    """The received bytes are not a valid response."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded JSON body."""
        return msgspec.json.decode(self.body)


class _KeepingReader(asyncio.StreamReader):
    """Keeps the last bytes received, so that a test can read data that came before a reset."""

    received = b""

    @override
    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.received = (self.received + bytes(data))[-_KEPT:]
        super().feed_data(data)

    @override
    def set_exception(self, exc: BaseException) -> None:
        self.feed_eof()


class Connection:
    """A connection that sends exactly the given bytes."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.reader = _KeepingReader()
        protocol = asyncio.StreamReaderProtocol(self.reader)
        transport, _ = await loop.create_connection(lambda: protocol, "127.0.0.1", self._port)
        self.transport = transport
        self._writer = asyncio.StreamWriter(transport, protocol, self.reader, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reset()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def reset(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()

    async def send(self, *parts: bytes) -> None:
        """Send the parts one by one, so that the worker can read each part before the next."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return the status and headers of the next response.

        Raises:
            MalformedResponse: the bytes are not the head of a response.
        """
        async with asyncio.timeout(WAIT_LIMIT):
            text = (await self.reader.readuntil(_END))[: -len(_END)].decode("latin-1")
        first, *lines = text.split("\r\n")
        status = _STATUS.fullmatch(first)
        if status is None:
            raise MalformedResponse(f"no status line: {first[:60]!r}")
        headers: dict[str, str] = {}
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise MalformedResponse(f"no field: {line[:60]!r}")
            name = field[1].lower()
            if name in headers and name in _ONLY_ONCE:
                raise MalformedResponse(f"the field {name!r} is there twice")
            headers[name] = field[2]
        return int(status[1]), headers

    async def response(self, *, to_head: bool = False) -> Response:
        """Return the next response that is not 100 (Continue).

        Raises:
            MalformedResponse: the bytes are not a response, or the response has no valid
                `Content-Length`.
        """
        while (found := await self.head())[0] < 200:
            pass
        status, headers = found
        length = "0" if to_head or status in (204, 304) else headers.get("content-length", "")
        if "transfer-encoding" in headers or not length.isdecimal():
            raise MalformedResponse(f"the response of {status} does not say its length")
        async with asyncio.timeout(WAIT_LIMIT):
            body = await self.reader.readexactly(int(length))
        return Response(status=status, headers=headers, body=body)

    async def is_closed(self) -> bool:
        """Return whether the worker closed the connection without sending more."""
        async with asyncio.timeout(WAIT_LIMIT):
            return await self.reader.read(1) == b""


def post(
    path: str,
    body: bytes | None,
    *,
    key: str = KEY,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the bytes of a request.

    Without `body`, `headers` must have the header that frames the body.
    """
    lines = [f"{method} {path} HTTP/1.1", "host: worker", f"authorization: Bearer {key}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + _END + (body or b"")
