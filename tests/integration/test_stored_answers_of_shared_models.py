"""Answers that were stored and may not be given any more are not given as another worker's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis
from typing_extensions import override

from sluicegate.gateway.cache.entry import CacheHit, Validity
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.work import OpenItem, WorkRunner, settle
from sluicegate.gateway.inference.claiming import ClaimingRunner
from sluicegate.gateway.inference.outcomes import LOST
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import ItemOutcome, RegionName, ServedModel
from testing.raw_http import Response, post
from testing.stub_backend import StubBackend, answer_when
from testing.waiting import WAIT_LIMIT, eventually, until
from tests.support.caching import cache_key
from tests.support.dispatching import GivenItem, GivenWork, Started
from tests.support.inference_scene import INFO, GatedRunner, RecordedTasks
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_CLAIM = b"\x03"


class ClaimedByNobody:
    """A cache that has nothing, and counts how often claims are renewed, the last of which."""

    def __init__(self) -> None:
        self.renewals = 0
        self.renewed: list[CacheKey] = []

    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Say that no look-up has claimed any."""
        return False

    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        """Say that nobody has claimed any."""
        return [False] * len(keys)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Count."""
        self.renewals += 1
        self.renewed = list(keys)

    def release(self, keys: Sequence[CacheKey]) -> None:
        """Do nothing."""

    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None, *, claims: bool = False
    ) -> list[CacheHit | None]:
        """Find nothing."""
        return [None] * len(keys)


class ClaimedByAnother(ClaimedByNobody):
    """A cache whose every key another worker computes; counts how often that is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0

    @override
    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        return [True] * len(keys)

    @override
    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None, *, claims: bool = False
    ) -> list[CacheHit | None]:
        self.looked += 1
        return [None] * len(keys)


class SlowRunner(GatedRunner):
    """Answers once `gate` is set; the first `failing` items fail before."""

    def __init__(self, *, failing: int = 0) -> None:
        super().__init__()
        self.gate.clear()
        self.failing = failing

    @override
    async def _run(self, items: Sequence[OpenItem]) -> None:
        settle([(item, LOST) for item in items[: self.failing]])
        await super()._run(items)


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


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
    workers = await control.wait_for_workers(Topic.EPOCHS, version, within=WAIT_LIMIT)
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


@asynccontextmanager
async def two_workers(
    folder: Path, url: str, stub: StubBackend
) -> AsyncIterator[tuple[RunningWorker, RunningWorker]]:
    """Run two workers with memory that both have the answer to `a` from before a purge."""
    redis = connect(url, timeout=60.0)
    await redis.flushall()
    models, cache = {"stub": {"scope": "shared"}}, {"redis_timeout": 5.0, "lease": 60.0}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(redis.aclose)
        workers = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            running = running_worker(folder / name, url, [stub], models=models, cache=cache)
            workers.append(await stack.enter_async_context(running))
        one, two = workers
        await ask(one, "a")
        await eventually(partial(is_stored, redis))
        assert (await ask(two, "a")).json()["usage"]["hit"] == 1
        await purge(redis, "tenant:acme")
        yield one, two


async def test_what_was_purged_is_computed_by_one_worker_and_found_by_the_others(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    redis = connect(valkey, timeout=60.0)
    async with two_workers(tmp_path, valkey, stub) as (one, two):
        (name,) = await redis.keys("sg:r:*")
        before = await redis.get(name)
        first = await ask(one, "a")

        async def is_replaced() -> bool:
            value = await redis.get(name)
            return value not in (None, before) and value[:1] != _CLAIM

        await eventually(is_replaced)
        second = await ask(two, "a")
    await redis.aclose()

    assert first.json()["usage"]["computed"] == 1
    assert second.json()["usage"]["hit"] == 1


async def test_of_workers_that_are_asked_at_once_for_what_was_purged_one_computes(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    async with two_workers(tmp_path, valkey, stub) as (one, two):
        gate, calls = asyncio.Event(), len(stub.calls)
        stub.behaviour = answer_when(gate)
        first = asyncio.create_task(ask(one, "a"))
        await stub.wait_for(lambda: len(stub.calls) == calls + 1)
        second = asyncio.create_task(ask(two, "a", "b"))
        # It asks for all that it computes at once, and so knows by then of the claim on the other.
        await stub.wait_for(lambda: len(stub.calls) == calls + 2)
        gate.set()
        usages = [response.json()["usage"] for response in await asyncio.gather(first, second)]

    assert [(usage["computed"], usage["collapsed"]) for usage in usages] == [(1, 0), (1, 1)]


def work_on(*texts: str) -> GivenWork:
    """Return work that other workers may wait for."""
    return GivenWork(
        model=ServedModel(info=INFO, regions=(RegionName("eu"),)),
        parameters=b"",
        items=tuple(
            GivenItem(index=index, body=text.encode(), key=cache_key(text))
            for index, text in enumerate(texts)
        ),
        is_shared=True,
    )


def start(
    runner: ClaimingRunner, *texts: str, within: float = WAIT_LIMIT, ended: list[int] | None = None
) -> Started:
    """Have items computed; `ended` gets their indexes."""

    def settle(outcomes: Sequence[tuple[int, ItemOutcome]]) -> None:
        runner.items_ended([started.items[index] for index, _ in outcomes])
        if ended is not None:
            ended.extend(index for index, _ in outcomes)

    deadline = asyncio.get_running_loop().time() + within
    started = Started(work_on(*texts), deadline=deadline, settle=settle)
    return started.start(runner)


def claiming(runner: WorkRunner, cache: ClaimedByNobody, *, lease: float) -> ClaimingRunner:
    tasks = RecordedTasks()
    return ClaimingRunner(runner, cache=cache, tasks=tasks, lease=lease, tracer=Tracer())


class ClaimedLate(ClaimedByNobody):
    """A cache that claims once `gate` is set; keeps what is released."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.released: list[CacheKey] = []

    @override
    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        await self.gate.wait()
        return [False] * len(keys)

    @override
    def release(self, keys: Sequence[CacheKey]) -> None:
        self.released += keys


async def test_work_that_is_given_up_while_it_claims_leaves_no_claim(anyio_backend: str) -> None:
    cache, runner = ClaimedLate(), SlowRunner()
    started = start(claiming(runner, cache, lease=60.0), "a", "b")

    started.cancel()
    cache.gate.set()
    await until(lambda: bool(cache.released))

    assert cache.released == [cache_key("a"), cache_key("b")]
    assert runner.begun == 0


async def test_a_stop_while_claims_are_on_their_way_releases_them(anyio_backend: str) -> None:
    cache, tasks = ClaimedLate(), RecordedTasks()
    runner = ClaimingRunner(SlowRunner(), cache=cache, tasks=tasks, lease=60.0, tracer=Tracer())
    started = start(runner, "a", "b")
    await asyncio.sleep(0)

    tasks.tasks[0].cancel()
    await started.ended.wait()

    assert cache.released == [cache_key("a"), cache_key("b")]


class SomeClaimed(ClaimedByNobody):
    """A cache of which look-ups claimed all keys of some requests; keeps what is released."""

    def __init__(self, *ours: str) -> None:
        super().__init__()
        self.ours = {cache_key(text) for text in ours}
        self.asked: list[CacheKey] = []
        self.released: list[CacheKey] = []

    @override
    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        found = self.ours.issuperset(keys)
        if found:
            self.ours.difference_update(keys)
        return found

    @override
    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        self.asked += keys
        return [False] * len(keys)

    @override
    def release(self, keys: Sequence[CacheKey]) -> None:
        self.released += keys


async def test_what_a_look_up_has_claimed_starts_at_once(anyio_backend: str) -> None:
    cache, runner = SomeClaimed("a", "b"), SlowRunner()
    runner.gate.set()
    claims = claiming(runner, cache, lease=60.0)

    claimed, other = start(claims, "a", "b"), start(claims, "c")
    begun = runner.begun
    await claimed.ended.wait()
    await other.ended.wait()

    assert begun == 2
    assert cache.asked == [cache_key("c")]
    assert cache.released == []


async def test_the_claim_of_an_item_that_failed_ends_before_the_others(anyio_backend: str) -> None:
    cache, ended = SomeClaimed("a", "b"), list[int]()
    runner = SlowRunner(failing=1)

    started = start(claiming(runner, cache, lease=60.0), "a", "b", ended=ended)
    await until(lambda: bool(ended))

    assert cache.released == [cache_key("a")]
    runner.gate.set()
    await started.ended.wait()


async def test_the_claim_on_an_item_that_failed_is_not_renewed(anyio_backend: str) -> None:
    cache, runner = ClaimedByNobody(), SlowRunner(failing=1)

    started = start(claiming(runner, cache, lease=0.001), "a", "b")
    await until(lambda: cache.renewals > 0)
    renewed = cache.renewed
    runner.gate.set()
    await started.ended.wait()

    assert renewed == [cache_key("b")]


async def test_who_waits_for_long_looks_ever_more_seldom(anyio_backend: str) -> None:
    cache, runner = ClaimedByAnother(), SlowRunner()
    runner.gate.set()

    await start(claiming(runner, cache, lease=0.25), "a", within=3.0).ended.wait()

    assert 0 < cache.looked < 60  # in 1.5 s


async def test_claims_of_next_to_no_time_do_not_keep_the_loop_busy(anyio_backend: str) -> None:
    cache, runner = ClaimedByNobody(), SlowRunner()
    loop = asyncio.get_running_loop()

    started = start(claiming(runner, cache, lease=1e-9), "a")
    began = loop.time()
    await until(lambda: loop.time() > began + 0.1)
    renewals, waited = cache.renewals, loop.time() - began
    runner.gate.set()
    await started.ended.wait()

    assert renewals < 250 * waited


async def test_claims_that_are_switched_off_are_not_renewed(anyio_backend: str) -> None:
    cache, runner = ClaimedByNobody(), SlowRunner()
    claims = claiming(runner, cache, lease=0.001)

    started = start(claims, "a")
    await until(lambda: cache.renewals > 0)

    claims.lease = 0.0
    renewed, later = cache.renewals, asyncio.get_running_loop().time() + 0.05
    await until(lambda: asyncio.get_running_loop().time() > later)
    runner.gate.set()
    await started.ended.wait()

    assert cache.renewals <= renewed + 1
