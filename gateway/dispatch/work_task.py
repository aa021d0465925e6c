"""Runs work by a task, and settles what the task leaves open."""

import asyncio
from collections.abc import Coroutine

from gateway.dispatch import failures
from gateway.dispatch.work import Outcomes, Settle, Work
from gateway.tasks import TaskStarter, log_failure
from gateway.types import ItemOutcome, Source


class WorkTask:
    """Implements `StartedWork`: whatever ends the task, nobody waits for an item without end."""

    def __init__(self, work: Work, settle: Settle) -> None:
        self._open = {item.index for item in work.items}
        self._settle = settle
        self._task: asyncio.Task[None] | None = None

    def settle(self, outcomes: Outcomes) -> None:
        """Settle items, on behalf of the task; what is settled already stays so.

        Parts of cancelled work may end after it.
        """
        new = [(index, outcome) for index, outcome in outcomes if index in self._open]
        if new:
            self._open.difference_update([index for index, _ in new])
            self._settle(new)

    def run(self, tasks: TaskStarter, steps: Coroutine[object, object, None]) -> "WorkTask":
        """Start the task, which calls `settle`."""
        self._task = tasks.create_task(steps)
        self._task.add_done_callback(self._ended)
        return self

    def cancel(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        failure = failures.CANCELLED
        if not task.cancelled():
            failure = failures.UNEXPECTED
            if (error := task.exception()) is not None:
                log_failure(error)
        outcome = ItemOutcome(source=Source.FAILED, failure=failure)
        self.settle([(index, outcome) for index in self._open])
