"""Sends requests at a steady rate and counts answered, refused and broken ones."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Self

_END = b"\r\n\r\n"

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SteadyLoad:
    """Sends `request` to `port` at `rate` a second while entered.

    Half of them go over new connections, half over kept ones: a kept connection is used until an
    answer says that it was the last one. `refused` had no connection; `broken` had one, sent its
    request and was not answered: that is what must not be.
    """

    def __init__(self, port: int, request: bytes, *, rate: float = 60.0) -> None:
        self._port = port
        self._request = request
        self._interval = 1.0 / rate
        self._kept: list[Pair] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self.statuses: Counter[int] = Counter()
        self.refused = 0
        self.broken: list[str] = []

    @property
    def answered(self) -> int:
        """How many were answered so far."""
        return self.statuses.total()

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Send no more, and wait for what was sent."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for _, writer in self._kept:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            self._kept.clear()

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        start, number = loop.time(), 0
        while True:
            number += 1
            task = loop.create_task(self._one(is_kept=number % 2 == 0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(max(0.0, start + number * self._interval - loop.time()))

    async def _one(self, *, is_kept: bool) -> None:
        is_new = not (is_kept and self._kept)
        try:
            async with self._connection(is_kept=is_kept) as (reader, writer):
                is_last = True
                try:
                    async with asyncio.timeout(60):
                        is_last = await self._exchange(reader, writer)
                except (OSError, EOFError, TimeoutError) as error:
                    self.broken.append(f"{type(error).__name__}, new connection: {is_new}")
                finally:
                    if is_kept and not is_last:
                        self._kept.append((reader, writer))
                    else:
                        writer.close()
        except ConnectionRefusedError:
            self.refused += 1

    @contextlib.asynccontextmanager
    async def _connection(self, *, is_kept: bool) -> AsyncIterator[Pair]:
        if is_kept and self._kept:
            yield self._kept.pop(0)
        else:
            yield await asyncio.open_connection("127.0.0.1", self._port)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return whether the answer was the last one of its connection."""
        writer.write(self._request)
        head = (await reader.readuntil(_END)).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        self.statuses[int(head.split()[1])] += 1
        return b"connection: close" in head
