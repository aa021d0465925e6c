"""Proxies TCP connections to a server and delays its replies."""

import asyncio
from collections.abc import Callable
from typing import Self

from testing.servers import close_server


class DelayingProxy:
    """Listens on a loopback port and forwards to a Unix socket.

    It waits `delay()` seconds before it passes on each reply.

    `connections` counts the accepted connections. A new `path` is for new connections.
    """

    def __init__(self, path: str, *, delay: Callable[[], float]) -> None:
        self.path = path
        self._delay = delay
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The URL for redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        await close_server(self._server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            from_server, to_server = await asyncio.open_unix_connection(self.path)
        except OSError:
            writer.close()
            return
        forward = asyncio.create_task(_pump(reader, to_server, lambda: 0.0))
        try:
            await _pump(from_server, writer, self._delay)
        except asyncio.CancelledError:
            return  # the proxy has ended
        finally:
            forward.cancel()
            await asyncio.gather(forward, return_exceptions=True)
            for one in (to_server, writer):
                one.close()
            await asyncio.gather(
                to_server.wait_closed(), writer.wait_closed(), return_exceptions=True
            )


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: Callable[[], float]
) -> None:
    try:
        while chunk := await source.read(65_536):
            pause = delay()
            if pause:
                await asyncio.sleep(pause)
            target.write(chunk)
            await target.drain()
    except OSError:
        return
    finally:
        target.close()
