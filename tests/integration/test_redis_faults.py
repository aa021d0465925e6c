"""Whatever happens to a Redis: no 5xx, memory answers as ever, misses wait 20 ms more.

`make faults FAULT="* cache"` does the same under load; here few requests, one after the other.
"""

import asyncio
import re
import statistics
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from sluicegate.gateway.types import Rule
from testing.raw_http import Connection, post
from testing.stub_backend import StubBackend
from testing.waiting import eventually, until
from tests.support.redis_faults import (
    FAULTS,
    OPENING,
    STATE_FAULTS,
    STATE_OPENING,
    FaultyRedis,
    failing_redis,
)
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_PATH = "/v1/classify"
_ALLOWED = 0.020
_HANDFUL = 5
_FAR_AWAY = Rule(name="minute", unit="requests", capacity=1_000_000, window=60.0)
_ROWS = {"name": "rows", "unit": "rows", "capacity": 1_000_000, "window": 60.0}
_BUSY_MACHINE = 0.4
"""What others on the same cores may add: far less than the seconds that a client of Redis waits.

`make faults` measures what callers notice."""


class Caller:
    """Asks one thing after the other, and remembers how long each took."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._texts = iter(range(1_000_000))

    async def hit(self) -> float:
        """Ask what memory has; return the seconds it took."""
        took, cache = await self._ask("popular")
        assert "detail=memory" in cache
        return took

    async def miss(self) -> float:
        """Ask what nobody asked before; return the seconds it took."""
        took, cache = await self._ask(f"never asked {next(self._texts)}")
        assert "uri-miss" in cache
        return took

    async def misses_until(self, worker: RunningWorker, figure: str, former: float) -> bool:
        """Ask what nobody asked before; return whether a figure of the cache has grown."""
        await self.miss()
        return counted(worker, figure) > former

    async def lives_through(
        self, redis: FaultyRedis
    ) -> tuple[list[float], list[float], list[float]]:
        """Begin the fault; return what misses before it, misses and hits during it took."""
        await self._ask("popular")
        before = [await self.miss() for _ in range(50)]
        redis.begin()
        during = [await self.miss() for _ in range(50)]
        return before, during, [await self.hit() for _ in range(50)]

    async def _ask(self, text: str) -> tuple[float, str]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await self._connection.send(post(_PATH, classify(text)))
        answer = await self._connection.response()
        assert answer.status == 200
        return loop.time() - started, answer.headers["cache-status"]


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


WRITTEN = 'cache_writes_total{result="written",tier="redis"}'
WRITE_ERRORS = 'cache_writes_total{result="error",tier="redis"}'
CACHE_BREAKER = 'breaker_openings_total{dependency="cache_redis"}'
STATE_BREAKER = 'breaker_openings_total{dependency="state_redis"}'
STATE_FAILURES = 'limit_redis_calls_total{result="failed"}'
ADMITTED_BY_REDIS = 'limit_admissions_total{source="redis"}'


def counted(worker: RunningWorker, name: str) -> float:
    """Return a counter of the worker, by its name and labels on the metrics page."""
    line = rf"^sluicegate_{re.escape(name)} (\S+)$"
    found = re.search(line, worker.metrics(), re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_redis_costs_misses_little_and_hits_nothing(
    fault: str, tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    async with (
        failing_redis(fault) as redis,
        running_worker(tmp_path, redis.url, [stub], state_url=valkey) as worker,
        worker.connect() as connection,
    ):
        caller = Caller(connection)
        before, during, hits = await caller.lives_through(redis)
        if fault in OPENING:
            await until(lambda: counted(worker, CACHE_BREAKER) >= 1, what="the breaker opens")
        else:
            # Where the machine stalled, the breaker is open for a moment and nothing is written.
            await eventually(partial(caller.misses_until, worker, WRITE_ERRORS, 0.0), every=0.05)
        redis.end()
        written = counted(worker, WRITTEN)
        # The breaker closed.
        await eventually(partial(caller.misses_until, worker, WRITTEN, written), every=0.05)

    allowed = statistics.median(before) + _ALLOWED + _BUSY_MACHINE
    assert statistics.median(during) < allowed
    assert statistics.median(hits) < _BUSY_MACHINE


@pytest.mark.parametrize("fault", STATE_FAULTS)
async def test_a_fault_of_the_state_redis_costs_misses_little_and_hits_nothing(
    fault: str, tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    rules, limits = (_FAR_AWAY,), {"key": [_ROWS]}
    async with (
        failing_redis(fault, "--appendonly", "yes") as redis,
        running_worker(
            tmp_path, valkey, [stub], rules=rules, state_url=redis.url, limits=limits
        ) as worker,
        worker.connect() as connection,
    ):
        caller = Caller(connection)
        before, during, hits = await caller.lives_through(redis)

        async def is_noticed() -> bool:
            await caller.hit()
            opened, failed = counted(worker, STATE_BREAKER), counted(worker, STATE_FAILURES)
            return opened >= 1 if fault in STATE_OPENING else failed >= 1

        if fault in STATE_OPENING or fault == "full":
            await eventually(is_noticed, every=0.02)
        redis.end()
        asked = counted(worker, ADMITTED_BY_REDIS)

        async def is_asked() -> bool:
            await caller.miss()
            return counted(worker, ADMITTED_BY_REDIS) > asked

        await eventually(is_asked, every=0.05)  # the breaker closed

    allowed = statistics.median(before) + _ALLOWED + _BUSY_MACHINE
    assert sorted(during)[-_HANDFUL] < allowed
    assert sorted(hits)[-_HANDFUL] < _BUSY_MACHINE
