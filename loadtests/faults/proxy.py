"""Proxies calls to a backend and delays, drops, refuses or fails them on demand."""

import asyncio
import random
from typing import Self

import msgspec

from backends.protocol import CALL_PATH, Call

_END = b"\r\n\r\n"
_ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"


class ProxyFault(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of the proxy, transparent by default.

    A `silent` proxy accepts connections and forwards nothing. A proxy that `refuses` closes its
    listener. `errors` is the share of calls that get 500. `stalls` is the share of calls that are
    answered `stall` seconds late.
    """

    latency: float = 0.0
    errors: float = 0.0
    stalls: float = 0.0
    stall: float = 0.0
    silent: bool = False
    refuses: bool = False


SOUND = ProxyFault()


class FaultyProxy:
    """Proxies calls to the backend at the port `target`; `items` counts the items of all calls."""

    def __init__(self, target: int, *, seed: int = 1) -> None:
        self.port = 0
        self.items = 0
        self._target = target
        self._fault = SOUND
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._muted: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
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
            await self._serve(reader, writer, self._open[task])
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of the two is gone, and the other hears of it; or the proxy closes
        finally:
            for each in self._open.pop(task):
                each.transport.abort()

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: list[asyncio.StreamWriter],
    ) -> None:
        """Forward requests and answers until one side closes."""
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        opened.append(forth)
        late = [0.0]
        """Seconds by which the next answers of this connection are late."""
        answers = asyncio.create_task(self._pass_back(back, writer, late))
        try:
            while True:
                head = await reader.readuntil(_END)
                body = await reader.readexactly(_length(head))
                if self._is_passed_on(head, body, writer, late):
                    forth.write(head + body)
                    await forth.drain()
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    def _is_passed_on(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter, late: list[float]
    ) -> bool:
        fault = self._fault
        is_call = CALL_PATH.encode() in head.split(b"\r\n", 1)[0]
        if is_call:
            self.items += len(msgspec.msgpack.decode(body, type=Call).items)
        if fault.silent:
            self._muted.append(writer)
            return False
        if is_call and self._random.random() < fault.errors:
            writer.write(_ERROR)
            return False
        is_stalled = is_call and self._random.random() < fault.stalls
        late[0] = fault.latency + (fault.stall if is_stalled else 0.0)
        return True

    async def _pass_back(
        self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, late: list[float]
    ) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await back.read(65_536):
            if self._fault.silent:
                self._muted.append(writer)
            elif late[0]:
                loop.call_later(late[0], writer.write, chunk)
            else:
                writer.write(chunk)
        # The backend is gone: a closed connection says so, unless nothing gets through.
        if not self._fault.silent:
            writer.transport.abort()


def _length(head: bytes) -> int:
    lower = head.lower()
    place = lower.find(b"content-length:")
    return 0 if place < 0 else int(lower[place + 15 :].split(b"\r\n", 1)[0])
