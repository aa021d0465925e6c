"""Proxies calls to a backend, and delays, drops, refuses or fails them on demand."""

import asyncio
import random
import re
from typing import Self

import msgspec

from sluicegate.wire.protocol import CALL_PATH, Call

_ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class ProxyFault(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of the proxy. By default it only forwards.

    A `silent` proxy accepts connections and forwards nothing. A proxy that `refuses` closes its
    listener. `errors` is the share of calls that the proxy answers with 500. `stalls` is the share
    of calls whose answers it delays by `stall` seconds.
    """

    latency: float = 0.0
    errors: float = 0.0
    stalls: float = 0.0
    stall: float = 0.0
    silent: bool = False
    refuses: bool = False


SOUND = ProxyFault()


class FaultyProxy:
    """Proxies calls to the backend at the port `target`; `items` counts the items of calls."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.items = 0
        self._target = target
        self._fault = SOUND
        self._random = random.Random(target)
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.set_fault(ProxyFault(refuses=True))

    async def set_fault(self, fault: ProxyFault) -> None:
        """From now on behave as `fault` says, and close connections that were kept silent."""
        before, self._fault = self._fault, fault
        if before.silent or fault.refuses:
            for writer in self._open:
                writer.transport.abort()
        if fault.refuses:
            self._server.close()
        elif before.refuses:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward requests and answers until one side closes; then close the other side."""
        opened = {writer}
        self._open.add(writer)
        late = [0.0]
        """Seconds by which the next answers of this connection are late."""
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
            opened.add(forth)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_back(back, writer, late))
                both.create_task(self._pass_on(reader, forth, writer, late))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            for each in opened:
                each.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        late: list[float],
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            fault, is_call = self._fault, CALL_PATH.encode() in head.split(b"\r\n", 1)[0]
            if is_call:
                self.items += len(msgspec.msgpack.decode(body, type=Call).items)
            if fault.silent:
                continue
            if is_call and self._random.random() < fault.errors:
                writer.write(_ERROR)
                continue
            is_stalled = is_call and self._random.random() < fault.stalls
            late[0] = fault.latency + (fault.stall if is_stalled else 0.0)
            forth.write(head + body)
            await forth.drain()

    async def _pass_back(
        self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, late: list[float]
    ) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await back.read(65_536):
            if self._fault.silent:
                continue
            if late[0]:
                loop.call_later(late[0], writer.write, chunk)
            else:
                writer.write(chunk)
        # The backend is gone. Closing the connection tells the caller, unless the proxy is silent.
        if not self._fault.silent:
            writer.transport.abort()
