"""An open item is settled once, and each who waits for it hears once."""

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.work import OpenItem, run, settle, settle_failed
from sluicegate.gateway.types import ItemOutcome, Source
from tests.support.dispatching import Outcomes, Started, work
from tests.support.inference_scene import RecordedTasks

pytestmark = pytest.mark.anyio
DONE = ItemOutcome(source=Source.COMPUTED, result=b"{}")


class Waiter:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[list[int]] = []

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Note what ended together."""
        self.heard.append([item.index for item in items])


class BrokenWaiter(Waiter):
    """Raises when it is told."""

    @override
    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Raise."""
        raise ZeroDivisionError


def opened(outcomes: Outcomes, count: int) -> list[OpenItem]:
    return Started(work(count), deadline=1e9, settle=outcomes.settle).items


async def test_who_waits_for_several_that_end_together_is_told_once(anyio_backend: str) -> None:
    waiter, items = Waiter(), opened(Outcomes(), 3)
    for item in items:
        item.waiters.append(waiter)

    settle([(items[0], DONE), (items[2], DONE)])
    settle([(items[1], DONE)])

    assert waiter.heard == [[0, 2], [1]]


async def test_only_the_first_outcome_counts(anyio_backend: str) -> None:
    outcomes, waiter = Outcomes(), Waiter()
    (item,) = opened(outcomes, 1)
    item.waiters.append(waiter)

    counts = [settle([(item, DONE)]), settle_failed([item], failures.CANCELLED)]

    assert counts == [1, 0]
    assert outcomes.by_index == {0: DONE}
    assert waiter.heard == [[0]]


async def test_one_who_fails_costs_no_other_its_outcome(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiter, items = Waiter(), opened(Outcomes(), 2)
    items[0].waiters.append(BrokenWaiter())
    items[1].waiters.append(waiter)

    settle([(item, DONE) for item in items])

    assert waiter.heard == [[1]]
    assert "a background task failed" in caplog.text


async def test_what_a_task_leaves_open_is_cancelled_with_it(anyio_backend: str) -> None:
    tasks, outcomes = RecordedTasks(), Outcomes()
    items = opened(outcomes, 2)

    async def hang() -> None:
        settle([(items[0], DONE)])
        await asyncio.Event().wait()

    run(tasks, hang(), items)
    await asyncio.sleep(0)
    tasks.tasks[0].cancel()
    await asyncio.wait(tasks.tasks)
    settle([(items[1], DONE)])

    assert outcomes.codes() == [failures.CANCELLED.code]
    assert outcomes.by_index[0] == DONE
