"""Monitors whether the Redis of the result cache is reachable, for the worker's readiness."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gateway.redis.connect import Pipe

_INTERVAL = 1.0
_PING_TIMEOUT = 0.5


class RedisHealthMonitor:
    """Pings Redis over `pipe` every second, with jitter, while entered; closes `pipe` at its exit.

    Cache lookups cannot tell: there may be none, and a failed one looks like a miss.
    """

    def __init__(
        self,
        pipe: Pipe,
        *,
        interval: float = _INTERVAL,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._pipe = pipe
        self._interval = interval
        self._random = chance
        self._reached = True
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether Redis answered the last ping."""
        return self._reached

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task
        await self._pipe.aclose()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._reached = await responds_to_ping(self._pipe)
            with contextlib.suppress(TimeoutError):
                pause = self._interval * (1.5 - self._random())
                await asyncio.wait_for(self._stopping.wait(), pause)


async def responds_to_ping(pipe: Pipe) -> bool:
    """Return whether Redis answers a ping in time; of a cluster, one of its nodes."""
    try:
        async with asyncio.timeout(_PING_TIMEOUT):
            (reply,) = await pipe.execute([(b"PING",)])
    except OSError:
        return False
    return not isinstance(reply, Exception)
