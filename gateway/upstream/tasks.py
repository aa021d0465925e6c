"""Tasks with an owner: whoever waits for one may go away, the owner sees it to its end."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class OwnedTasks:
    """An async context manager; tasks still running when it is left are cancelled and awaited."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`.

        When the caller is cancelled, so is the work, but the caller does not wait and no second
        cancellation can reach the work while it cleans up.
        """
        task = self.start(work)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(_ignore_outcome)
            task.cancel()
            raise
        return task.result()


def _ignore_outcome(task: asyncio.Task[Any]) -> None:
    # Nobody waits for it any more; an error not looked at would be logged as forgotten.
    if not task.cancelled():
        task.exception()
