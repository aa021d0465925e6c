"""Knows whether the Redis of the result cache answers, for the readiness of the worker."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gateway.redis.connect import Pipe

_INTERVAL = 1.0
_PATIENCE = 0.5


class RedisWatch:
    """Asks `pipe` every second, more or less by chance, while it is entered; closes it then.

    Look-ups do not tell: there may be none, and those that miss look like those that fail.
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
        self._chance = chance
        self._reached = True
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_reached(self) -> bool:
        """Whether it answered when it was asked last."""
        return self._reached

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._follow())
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

    async def _follow(self) -> None:
        while not self._stopping.is_set():
            self._reached = await answers(self._pipe)
            with contextlib.suppress(TimeoutError):
                pause = self._interval * (1.5 - self._chance())
                await asyncio.wait_for(self._stopping.wait(), pause)


async def answers(pipe: Pipe) -> bool:
    """Whether the Redis behind `pipe` answers soon; of a cluster, one of its nodes."""
    try:
        async with asyncio.timeout(_PATIENCE):
            (reply,) = await pipe.execute([(b"PING",)])
    except OSError:
        return False
    return not isinstance(reply, Exception)
