"""Owns tasks that outlive the request that started them."""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Protocol, Self

_log = logging.getLogger(__name__)


class TaskStarter(Protocol):
    """Owns tasks that outlive the request which started them."""

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` to its end."""
        ...


class TaskOwner:
    """Holds tasks until they end; at its exit gives them `drain` seconds, then cancels them."""

    def __init__(self, *, drain: float) -> None:
        self._drain = drain
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` to its end; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def __len__(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._drain)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)
