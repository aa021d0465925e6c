"""Cached rows, and equal rows that run once: who waits, who pays, who may see."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.errors import DeadlineExceeded, ItemRefused, Overloaded
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import Encoding, OutputKind
from testing.waiting import until
from tests.support.clock import Clock
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio


class Bench:
    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self.gate = Gate()
        self.clock = clock
        self.executor = PacedExecutor(self.gate)
        self.batcher = Batcher(
            name="tiny",
            executor=self.executor,
            settings=BackendSettings(),
            clock=clock,
            tracing=NO_TRACING,
        )
        self.cache = RowCache(max_bytes=max_bytes)
        self.rows = RowCoalescer(digest="graph", cache=self.cache, batcher=self.batcher)

    async def ask(
        self,
        *texts: int,
        scope: str = "a",
        kind: OutputKind = OutputKind.POOLED,
        patience: float = 30.0,
    ) -> tuple[int, int]:
        caller = RowCaller(scope=scope, deadline=self.clock() + patience)
        encodings = []
        for text in texts:
            ids = np.array([text, text + 1], dtype=np.int32)
            encodings.append(Encoding(ids=ids, type_ids=None, key=ids.tobytes()))
        await self.rows.ask(encodings, kind=kind, caller=caller)
        return caller.rows, caller.tokens


@asynccontextmanager
async def bench(
    max_bytes: int = 10**6, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Bench]:
    made = Bench(max_bytes, clock)
    async with made.batcher:
        yield made


async def test_a_hundred_equal_rows_at_once_run_once_and_are_paid_once() -> None:
    async with bench() as b:
        tasks = [asyncio.create_task(b.ask(7)) for _ in range(100)]
        await until(lambda: b.gate.arrived == 1)
        b.gate.open()
        counted = await asyncio.gather(*tasks)

    assert list(b.executor.shapes) == [(1, 2)]
    assert sorted(counted) == [(0, 0)] * 99 + [(1, 2)]
    assert b.rows.statistics().coalesced_rows == 99


async def test_a_known_row_costs_nothing() -> None:
    async with bench() as b:
        b.gate.open()
        first, second = await b.ask(7), await b.ask(7, 8)

    assert first == (1, 2)
    assert second == (1, 2)
    assert b.rows.statistics().cached_rows == 1


async def test_a_row_asked_twice_by_one_item_runs_once() -> None:
    async with bench() as b:
        b.gate.open()

        assert await b.ask(7, 7, 7) == (1, 2)


async def test_no_rows_are_answered_at_once() -> None:
    async with bench() as b, asyncio.timeout(10.0):
        assert await b.ask() == (0, 0)


async def test_what_is_over_its_budget_does_not_wait_for_room() -> None:
    async with bench() as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        waiting = asyncio.create_task(b.ask(*range(2, 4098)))
        await until(lambda: b.batcher.statistics().queued_rows == 4096)
        caller = RowCaller(scope="b", deadline=b.clock() + 600.0, rows_left=0)
        ids = np.array([7], dtype=np.int32)
        row = Encoding(ids=ids, type_ids=None, key=ids.tobytes())

        async with asyncio.timeout(10.0):
            with pytest.raises(ItemRefused):
                await b.rows.ask([row], kind=OutputKind.POOLED, caller=caller)
        b.gate.open()
        await asyncio.gather(blocker, waiting)


async def test_scopes_share_nothing() -> None:
    async with bench() as b:
        b.gate.open()
        one, other = await b.ask(7, scope="a"), await b.ask(7, scope="b")

    assert one == other == (1, 2)


async def test_graphs_share_nothing_although_they_share_a_cache() -> None:
    async with bench() as b:
        b.gate.open()
        one = await b.ask(7)
        b.rows = RowCoalescer(digest="another graph", cache=b.cache, batcher=b.batcher)
        other = await b.ask(7)

    assert one == other == (1, 2)


async def test_the_kind_of_output_tells_rows_apart() -> None:
    async with bench() as b:
        b.gate.open()
        await b.ask(7)

        assert await b.ask(7, kind=OutputKind.TOKENS) == (1, 2)


async def test_the_first_asker_s_leaving_does_not_take_the_row_from_others() -> None:
    async with bench() as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        first = asyncio.create_task(b.ask(7))
        await until(lambda: b.batcher.statistics().queued_rows == 1)
        second = asyncio.create_task(b.ask(7))
        await until(lambda: b.rows.statistics().coalesced_rows == 1)
        first.cancel()
        b.gate.open()
        await blocker

        assert await second == (1, 2)


async def test_a_row_that_an_asker_with_more_time_joined_runs_for_it() -> None:
    clock = Clock()
    async with bench(clock=clock) as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        hurried = asyncio.create_task(b.ask(7, patience=1.0))
        await until(lambda: b.batcher.statistics().queued_rows == 1)
        patient = asyncio.create_task(b.ask(7))
        await until(lambda: b.rows.statistics().coalesced_rows == 1)
        clock.advance(2.0)
        b.gate.open()

        await asyncio.gather(blocker, hurried, patient)

    assert b.batcher.statistics().expired_rows == 0
    assert b.rows.statistics().computed_rows == 2


async def test_a_hurried_asker_does_not_shorten_a_patient_one_s_wait() -> None:
    clock = Clock()
    async with bench(clock=clock) as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        patient = asyncio.create_task(b.ask(7))
        await until(lambda: b.batcher.statistics().queued_rows == 1)
        hurried = asyncio.create_task(b.ask(7, patience=1.0))
        await until(lambda: b.batcher.statistics().queued_rows == 2)
        clock.advance(2.0)
        b.gate.open()

        counted = await asyncio.gather(blocker, patient, hurried)

    assert list(counted) == [(1, 2), (1, 2), (0, 0)]


async def test_a_hurried_asker_joins_a_row_that_runs_already() -> None:
    async with bench(clock=Clock()) as b:
        patient = asyncio.create_task(b.ask(7))
        await until(lambda: b.gate.arrived == 1)

        hurried = asyncio.create_task(b.ask(7, patience=1.0))
        await asyncio.wait({hurried}, timeout=0)  # it begins
        b.gate.open()

        assert [await patient, await hurried] == [(1, 2), (0, 0)]
        assert list(b.executor.shapes) == [(1, 2)]


async def test_an_asker_in_too_much_of_a_hurry_leaves_the_row_to_others() -> None:
    async with bench(clock=Clock()) as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        patient = asyncio.create_task(b.ask(7))
        await until(lambda: b.batcher.statistics().queued_rows == 1)

        with pytest.raises(Overloaded):
            await b.ask(7, patience=1e-6)
        other = asyncio.create_task(b.ask(7))
        await asyncio.wait({other}, timeout=0)  # it begins
        b.gate.open()

        assert [await blocker, await patient, await other] == [(1, 2), (1, 2), (0, 0)]


async def test_an_asker_with_time_left_does_not_join_a_row_given_up() -> None:
    clock = Clock()
    async with bench(clock=clock) as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        first = asyncio.create_task(b.ask(7, patience=1.0))
        await until(lambda: b.batcher.statistics().queued_rows == 1)
        other = asyncio.create_task(b.ask(3))
        await until(lambda: b.batcher.statistics().queued_rows == 2)
        clock.advance(2.0)
        b.gate.let_one_pass()
        await until(lambda: b.batcher.statistics().expired_rows == 1)

        second = asyncio.create_task(b.ask(7))
        await until(lambda: b.batcher.statistics().queued_rows == 1)
        b.gate.open()

        with pytest.raises(DeadlineExceeded) as late:
            await first
        assert (late.value.retry_after or 0) > 0
        assert [await blocker, await other, await second] == [(1, 2)] * 3
        assert b.batcher.statistics().late_rows == 0


async def test_the_cache_stays_within_its_bytes_and_drops_what_was_used_longest_ago() -> None:
    async with bench(max_bytes=2_000) as b:
        b.gate.open()
        for text in range(20):
            await b.ask(text)
            await b.ask(0)
        evicted = b.rows.statistics().evicted_rows

        assert b.cache.size_bytes <= 2_000
        assert evicted > 0
        assert await b.ask(0) == (0, 0)
        assert await b.ask(1) == (1, 2)


async def test_an_item_that_asked_for_a_row_twice_may_give_it_up() -> None:
    async with bench() as b:
        blocker = asyncio.create_task(b.ask(1))
        await until(lambda: b.gate.arrived == 1)
        # Two equal windows of one text, beside another row of the same tenant.
        twice = asyncio.create_task(b.ask(7, 7))
        other = asyncio.create_task(b.ask(9))
        await until(lambda: b.batcher.statistics().queued_rows == 2)

        twice.cancel()
        with pytest.raises(asyncio.CancelledError):
            await twice
        left = b.batcher.statistics().queued_rows
        b.gate.open()

        assert left == 1
        assert [await blocker, await other, await b.ask(7)] == [(1, 2)] * 3
        assert b.batcher.statistics().queued_rows == 0
