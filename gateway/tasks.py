"""Owns tasks that outlive their caller.

Each task is awaited or cancelled, and its error is logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class TaskStarter(Protocol):
    """Starts tasks that outlive the request that started them."""

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task.

        The caller must handle the result or the exception of the task.
        """
        ...


class TaskScope:
    """An async context manager that owns tasks.

    On exit, the scope gives its tasks `drain` seconds to end, and then cancels the remaining tasks.

    The exit then waits until all cancelled tasks have ended. It also waits for tasks that were
    started by the cleanup of cancelled tasks.
    """

    def __init__(self, *, drain: float = 0.0) -> None:
        self.drain = drain
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.drain)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` to its end, and log its exception."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task.

        The caller must handle the result or the exception of the task.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(error)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in a task, and return its result.

        If the caller is cancelled, `work` is cancelled, too, but the caller does not wait until
        `work` has ended. A second cancellation of the caller therefore cannot interrupt the cleanup
        of `work`.
        """
        task = self.create_task(work)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(ignore_outcome)
            task.cancel()
            raise
        return task.result()


def log_failure(error: BaseException) -> None:
    """Log an error that has ended a task that nobody awaits."""
    _log.error("a background task failed", exc_info=error)


def ignore_outcome(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future that nobody awaits. Otherwise, asyncio would log it."""
    if not future.cancelled():
        future.exception()


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait `seconds`, or until `stop` is set."""
    # `wait_for` would start a task for each wait in Python 3.11.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class PeriodicTask:
    """Awaits `step` every `interval` seconds, and soon after each `wake`, until its context ends.

    The first step runs after one interval. If a step raises an exception, it is logged with the
    message `failure`, and later steps still run. The exit waits for the step in progress. It does
    not cancel the step, because redis-py sometimes swallows a cancellation.
    """

    def __init__(
        self, step: Callable[[], Awaitable[object]], *, interval: float, failure: str
    ) -> None:
        self._step = step
        self._interval = interval
        self._failure = failure
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Run the next step now."""
        self._woken.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_stopping = True
        self.wake()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await pause(self._woken, self._interval)
            self._woken.clear()
            if self._is_stopping:
                return
            try:
                await self._step()
            except Exception:  # noqa: BLE001 - later steps must still run
                _log.exception(self._failure)
