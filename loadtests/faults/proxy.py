"""Proxies calls to a backend and delays, drops, refuses or fails them on demand."""

import asyncio
import random
from types import TracebackType
from typing import Self

import msgspec

from backends.protocol import CALL_PATH, Call

_END = b"\r\n\r\n"
_ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"


class ProxyFault(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of the proxy, transparent by default.

    `silent` takes everything and passes nothing on, `refuses` closes its listener. `stalls` is the
    share of calls whose answer comes `stall` seconds late.
    """

    latency: float = 0.0
    errors: float = 0.0
    stalls: float = 0.0
    stall: float = 0.0
    silent: bool = False
    refuses: bool = False


SOUND = ProxyFault()


class FaultyProxy:
    """Proxies calls to the backend at `target`; `items` counts the items passed to it."""

    def __init__(self, target: int, *, seed: int = 1) -> None:
        self.target = target
        self.port = 0
        self.items = 0
        self.calls = 0
        self.stalled = 0
        self._fault = SOUND
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._muted: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def set_fault(self, fault: ProxyFault) -> None:
        """Behave like this from now on, and cut connections that were kept silent."""
        before, self._fault = self._fault, fault
        for writer in self._muted:
            writer.transport.abort()
        self._muted.clear()
        if fault.refuses and not before.refuses:
            await self._close()
        elif before.refuses and not fault.refuses:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task, writers in list(self._open.items()):
            task.cancel()
            for writer in writers:
                writer.transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError
        self._open[task] = [writer]
        try:
            connection = _Connection(self, writer)
            await connection.serve(reader, self._open[task])
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of the two is gone, and the other hears of it; or the proxy closes
        finally:
            for each in self._open.pop(task):
                each.transport.abort()

    @property
    def fault(self) -> ProxyFault:
        """The present behaviour."""
        return self._fault

    def chance(self, share: float) -> bool:
        """Return a random number."""
        return share > 0 and self._random.random() < share

    def mute(self, writer: asyncio.StreamWriter) -> None:
        """Register a connection that is kept silent."""
        self._muted.append(writer)


class _Connection:
    """A connection of the gateway with its connection to the backend."""

    def __init__(self, proxy: FaultyProxy, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writer = writer
        self._late = 0.0

    async def serve(
        self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]
    ) -> None:
        """Forward requests and answers until one side closes."""
        back, forth = await asyncio.open_connection("127.0.0.1", self._proxy.target)
        writers.append(forth)
        answers = asyncio.create_task(self._pass_back(back))
        try:
            while True:
                head = await reader.readuntil(_END)
                body = await reader.readexactly(_length(head))
                if not self._is_passed_on(head, body):
                    continue
                forth.write(head + body)
                await forth.drain()
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    def _is_passed_on(self, head: bytes, body: bytes) -> bool:
        proxy, fault = self._proxy, self._proxy.fault
        is_call = CALL_PATH.encode() in head.split(b"\r\n", 1)[0]
        if is_call:
            proxy.calls += 1
            proxy.items += len(msgspec.msgpack.decode(body, type=Call).items)
        if fault.silent:
            proxy.mute(self._writer)
            return False
        if is_call and proxy.chance(fault.errors):
            self._writer.write(_ERROR)
            return False
        is_stalled = is_call and proxy.chance(fault.stalls)
        proxy.stalled += is_stalled
        self._late = fault.latency + (fault.stall if is_stalled else 0.0)
        return True

    async def _pass_back(self, back: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await back.read(65_536):
            if self._proxy.fault.silent:
                self._proxy.mute(self._writer)
            elif self._late:
                loop.call_later(self._late, self._writer.write, chunk)
            else:
                self._writer.write(chunk)
        # The backend is gone: so says a closed connection, unless nothing gets through.
        if not self._proxy.fault.silent:
            self._writer.transport.abort()


def _length(head: bytes) -> int:
    lower = head.lower()
    place = lower.find(b"content-length:")
    return 0 if place < 0 else int(lower[place + 15 :].split(b"\r\n", 1)[0])
