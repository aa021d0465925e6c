"""Answers that were stored and may not be given any more are not given as another worker's."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from backends.protocol import Task
from gateway.cache.entry import Found
from gateway.cache.key import CacheKey
from gateway.dispatch.work import Work, WorkItem
from gateway.redis_connection import connect
from gateway.runtime.control import Control, Topic
from gateway.shared_work import SharedWork
from gateway.types import ItemOutcome, RegionName, ServedModel, Source
from tests.support.caching import cache_key
from tests.support.inference_scene import INFO
from tests.support.stub_backend import StubBackend
from tests.support.waiting import PATIENCE, eventually, until
from tests.support.worker import Response, RunningWorker, classify, post, running_worker

pytestmark = pytest.mark.anyio
_CLAIM = b"\x03"


class ClaimedByNobody:
    """A cache that has nothing, and counts how often claims are renewed."""

    def __init__(self) -> None:
        self.renewals = 0

    async def claim(self, keys: Sequence[CacheKey]) -> list[bool]:
        """Say that nobody has claimed any."""
        return [False] * len(keys)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Count."""
        self.renewals += 1

    async def lookup(self, keys: Sequence[CacheKey]) -> list[Found | None]:
        """Find nothing."""
        return [None] * len(keys)


class SlowRunner:
    """Answers once `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def run(
        self,
        work: Work,
        *,
        deadline: float,
        settle: Callable[[int, ItemOutcome], None],
        traceparent: str = "",
    ) -> None:
        """Settle every item."""
        await self.gate.wait()
        for item in work.items:
            settle(item.index, ItemOutcome(source=Source.COMPUTED, result=b"1"))


async def ask(worker: RunningWorker, *texts: str) -> Response:
    async with worker.connect() as connection:
        body = classify(*texts)
        await connection.send(post("/v1/classify", body, headers={"x-request-timeout": "60"}))
        return await connection.response()


async def is_stored(redis: Redis) -> bool:
    """Tell whether Redis has an answer, and not only the claim on one."""
    values = [await redis.get(name) for name in await redis.keys("sg:r:*")]
    return any(value is not None and value[:1] != _CLAIM for value in values)


async def purge(redis: Redis, name: str) -> None:
    """Raise an epoch, and return when the worker goes by it."""
    control = Control(redis)
    version = await control.raise_epoch(name)
    workers = await control.settled(Topic.EPOCHS, version, within=PATIENCE)
    assert set(workers.values()) == {"ok"}


async def test_what_was_purged_is_computed_though_redis_still_has_it(
    tmp_path: Path, valkey: str
) -> None:
    redis = connect(valkey, timeout=60.0)
    await redis.flushall()
    models = {"stub": {"scope": "shared"}}
    async with (
        StubBackend() as stub,
        running_worker(
            tmp_path, valkey, [stub], models=models, cache={"redis_timeout": 5.0}
        ) as worker,
    ):
        first = await ask(worker, "a")
        await eventually(partial(is_stored, redis))
        await purge(redis, "tenant:acme")

        after, again = await ask(worker, "a"), await ask(worker, "a")
    await redis.aclose()

    usages = [response.json()["usage"] for response in (first, after, again)]
    assert [usage["computed"] for usage in usages] == [1, 1, 0]
    assert [usage["collapsed"] for usage in usages] == [0, 0, 0]


async def test_claims_that_are_switched_off_are_not_renewed(anyio_backend: str) -> None:
    cache, runner = ClaimedByNobody(), SlowRunner()
    shared = SharedWork(runner, cache=cache, lease=0.001)
    work = Work(
        model=ServedModel(info=INFO, regions=(RegionName("eu"),)),
        task=Task.CLASSIFY,
        parameters=b"",
        items=(WorkItem(index=0, body=b"a", scope="shared", affinity=b"a", key=cache_key("a")),),
    )
    deadline = asyncio.get_running_loop().time() + PATIENCE
    settled: list[tuple[int, ItemOutcome]] = []

    def settle(index: int, outcome: ItemOutcome) -> None:
        settled.append((index, outcome))

    running = asyncio.create_task(shared.run(work, deadline=deadline, settle=settle))
    await until(lambda: cache.renewals > 0)

    shared.lease = 0.0
    renewed, later = cache.renewals, asyncio.get_running_loop().time() + 0.05
    await until(lambda: asyncio.get_running_loop().time() > later)
    runner.gate.set()
    await running

    assert cache.renewals <= renewed + 1
