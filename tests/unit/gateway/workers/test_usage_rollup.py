"""Usage is added up in small steps, and again after the ledger was away."""

import asyncio
import math
from pathlib import Path

import pytest

from sluicegate.gateway.errors import DependencyUnavailable, GatewayError, InvalidRequest
from sluicegate.gateway.workers.usage_rollup import UsageRollup
from tests.support.events import make_event
from tests.support.ledgers import open_ledger, record

pytestmark = pytest.mark.anyio
NOW = 10**18


class Store:
    """Has `rows` to add up, and then `steps` to bring totals up to date.

    It fails in `trouble`, and beyond `most` rows at a time.
    """

    def __init__(self, rows: int, *, steps: int = 0, most: int = 1000) -> None:
        self.rows = rows
        self.steps = steps
        self.most = most
        self.before: list[int] = []
        self.trouble: GatewayError | None = None

    def add_up(self, *, before: int, limit: int) -> int:
        """Take up to `limit`."""
        if self.trouble or limit > self.most:
            raise self.trouble or DependencyUnavailable("it took too long")
        self.before.append(before)
        taken = min(limit, self.rows)
        self.rows -= taken
        return taken

    def catch_up(self, *, limit: int) -> bool:
        """Take one of `steps`."""
        assert limit <= self.most
        self.steps = max(0, self.steps - 1)
        return self.steps > 0


async def test_it_goes_on_soon_while_there_is_more() -> None:
    store = Store(1500)
    rollup = UsageRollup(store, keep=100.0, every=30.0, rest=0.05, clock=lambda: NOW)

    waits = [await rollup.run_once() for _ in range(3)]

    assert waits == [0.05, 0.05, 30.0]
    assert set(store.before) == {NOW - 100_000_000_000}
    assert rollup.statistics().rows == 1500


async def test_totals_are_brought_up_to_date_once_rows_are_added_up() -> None:
    store = Store(1500, steps=4)
    rollup = UsageRollup(store, keep=100.0, every=30.0, rest=0.05, clock=lambda: NOW)

    waits = [await rollup.run_once() for _ in range(6)]

    assert waits == [0.05, 0.05, 0.05, 0.05, 0.05, 30.0]
    assert rollup.statistics().rows == 1500


@pytest.mark.parametrize(
    "trouble",
    [
        DependencyUnavailable("the ledger cannot be reached"),
        InvalidRequest("a sum is beyond what the ledger can hold"),
    ],
)
async def test_it_tries_again_after_what_ends_neither_it_nor_billing(
    trouble: GatewayError,
) -> None:
    store = Store(1)
    rollup = UsageRollup(store, keep=0.0, every=30.0)
    store.trouble = trouble
    during = await rollup.run_once()
    failures = rollup.statistics().failures
    store.trouble = None

    await rollup.run_once()

    assert (during <= 30.0, failures) == (True, 1)
    assert (rollup.statistics().rows, rollup.statistics().failures) == (1, 0)


async def test_it_ends_when_it_is_told_to() -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(UsageRollup(Store(0), keep=0.0, every=3600.0).run(stop))

    stop.set()

    async with asyncio.timeout(10):
        await running


@pytest.mark.parametrize("keep", [math.inf, 1e300, 1e11])
async def test_events_may_be_kept_for_ever(tmp_path: Path, keep: float) -> None:
    with open_ledger(tmp_path) as ledger:
        record(ledger, "w0-1", 1, [make_event(1)])
        rollup = UsageRollup(ledger.rollup, keep=keep)

        await rollup.run_once()

        assert (rollup.statistics().rows, rollup.statistics().failures) == (0, 0)


async def test_what_takes_too_long_is_added_up_in_parts() -> None:
    store = Store(300, most=100)
    rollup = UsageRollup(store, keep=0.0)

    for _ in range(30):
        await rollup.run_once()

    assert rollup.statistics().rows == 300
