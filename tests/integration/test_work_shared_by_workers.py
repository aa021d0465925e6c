"""Two workers of one Redis: what one computes the other waits for, and not for long."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.redis.client import connect
from sluicegate.wire.protocol import Call, Failed
from testing.raw_http import Response, post
from testing.stub_backend import Behaviour, Reply, StubBackend, answer, answer_when, echo, hang
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_PATH = "/v1/classify"
_LONG, _SHORT = 5.0, 0.2


@pytest.fixture
def own() -> Iterator[Valkey]:
    """A server whose commands only this test causes."""
    with Valkey() as server:
        yield server


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


@asynccontextmanager
async def sharing_workers(
    folder: Path,
    redis: Valkey,
    stub: StubBackend,
    *,
    lease: float,
    names: Sequence[str] = ("one", "two"),
) -> AsyncIterator[list[RunningWorker]]:
    """Run a worker for each of `names`."""
    cache = {"lease": lease, "redis_timeout": 2.0, "memory_enabled": False}
    async with AsyncExitStack() as stack:
        workers = []
        for name in names:
            (folder / name).mkdir()
            running = running_worker(folder / name, redis.url, [stub], cache=cache)
            workers.append(await stack.enter_async_context(running))
        yield workers


async def ask(worker: RunningWorker, *texts: str, **headers: str) -> Response:
    async with worker.connect() as connection:
        await connection.send(post(_PATH, classify(*texts), headers=headers))
        return await connection.response()


def reads(redis: Valkey) -> int:
    """Return how many times answers were looked up."""
    found = re.search(rb"cmdstat_mget:calls=(\d+)", redis.ask("INFO commandstats"))
    return int(found[1]) if found else 0


def renewals(redis: Valkey) -> int:
    """Return how many times a claim was renewed."""
    found = re.search(rb"cmdstat_pexpire:calls=(\d+)", redis.ask("INFO commandstats"))
    return int(found[1]) if found else 0


def written(redis: Valkey) -> int:
    """Return how many times a claim or an answer was written, or a claim was refused."""
    found = re.search(rb"cmdstat_set:calls=(\d+)", redis.ask("INFO commandstats"))
    return int(found[1]) if found else 0


def claims(redis: Valkey) -> int:
    return int(redis.ask("DBSIZE").strip(b":\r\n"))


async def computing(
    worker: RunningWorker, redis: Valkey, stub: StubBackend
) -> asyncio.Task[Response]:
    """Ask `worker`, and return when `stub` has it and others can know."""
    before = claims(redis)
    asked = asyncio.create_task(ask(worker, "a"))
    await stub.wait_for(lambda: len(stub.calls) == 1)
    await until(lambda: claims(redis) > before, what="a claim in Redis")
    return asked


async def test_what_one_worker_computes_another_waits_for(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    async with sharing_workers(tmp_path, own, stub, lease=_LONG) as (one, two):
        first = await computing(one, own, stub)
        looked = reads(own)
        second = asyncio.create_task(ask(two, "a", "b"))
        await until(lambda: reads(own) >= looked + 2, what="it looks and waits")
        gate.set()
        answers = await asyncio.gather(first, second)

    assert [response.status for response in answers] == [200, 200]
    assert answers[0].json()["results"][0] == answers[1].json()["results"][0]
    usage = answers[1].json()["usage"]
    assert (usage["collapsed"], usage["computed"]) == (1, 1)
    assert sorted(len(call.items) for call in stub.calls) == [1, 1]


async def test_of_texts_that_four_workers_are_asked_for_at_once_each_is_computed_once(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    texts = [f"text {number}" for number in range(40)]
    names = ("one", "two", "three", "four")
    patient = {"x-request-timeout": "60"}
    async with sharing_workers(tmp_path, own, stub, lease=_LONG, names=names) as workers:
        asked = (ask(worker, text, **patient) for text in texts for worker in workers)
        answers = await asyncio.gather(*asked)

    usages = [response.json()["usage"] for response in answers]
    assert {response.status for response in answers} == {200}
    assert sum(usage["computed"] for usage in usages) == len(texts)
    assert sum(usage["collapsed"] + usage["hit"] for usage in usages) == 3 * len(texts)
    assert sum(len(call.items) for call in stub.calls) == len(texts)


async def test_a_claim_lasts_while_its_worker_computes(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    async with sharing_workers(tmp_path, own, stub, lease=_SHORT) as (one, two):
        first = await computing(one, own, stub)
        second = asyncio.create_task(ask(two, "a", **{"x-request-timeout": "60"}))
        # More than two leases.
        await until(lambda: renewals(own) >= 5, what="renewals")
        gate.set()
        answers = await asyncio.gather(first, second)

    assert [response.json()["usage"]["computed"] for response in answers] == [1, 0]
    assert answers[1].json()["usage"]["collapsed"] == 1


async def test_what_a_worker_fails_to_compute_is_computed_by_who_waited(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    async with sharing_workers(tmp_path, own, stub, lease=_SHORT) as (one, two):
        first = asyncio.create_task(ask(one, "a", **{"x-request-timeout": "0.5"}))
        await stub.wait_for(lambda: len(stub.calls) == 1)
        stub.behaviour = answer
        second = await ask(two, "a", **{"x-request-timeout": "60"})

        assert (await first).status == 504
    assert (second.status, second.json()["usage"]["computed"]) == (200, 1)


async def test_half_of_the_time_is_left_to_compute_it_after_all(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    stub.behaviour = hang
    async with sharing_workers(tmp_path, own, stub, lease=_LONG) as (one, two):
        first = await computing(one, own, stub)
        stub.behaviour = answer
        second = await ask(two, "a", **{"x-request-timeout": "1"})
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    assert (second.status, second.json()["usage"]["computed"]) == (200, 1)


@pytest.mark.parametrize("directive", ["no-cache", "no-store", "max-age=0"])
async def test_who_wants_it_fresh_waits_for_nobody_and_keeps_nobody_waiting(
    directive: str, tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    async with sharing_workers(tmp_path, own, stub, lease=_LONG) as (one, two):
        gate = asyncio.Event()
        stub.behaviour = answer_when(gate)
        first = await computing(one, own, stub)
        stub.behaviour = answer
        fresh = await ask(two, "a", **{"cache-control": directive})
        gate.set()
        await first

    assert (fresh.status, fresh.json()["usage"]["computed"]) == (200, 1)


async def test_a_claim_is_no_answer_and_is_replaced_by_one(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    async with sharing_workers(tmp_path, own, stub, lease=_LONG) as (one, two):
        first = await computing(one, own, stub)
        only = await ask(two, "a", **{"cache-control": "only-if-cached"})
        gate.set()
        await first

        async def is_found() -> bool:
            response = await ask(two, "a", **{"cache-control": "only-if-cached"})
            return response.status == 200

        await eventually(is_found)

    assert (only.status, only.json()["code"]) == (504, "not_cached")


def of_another_secret(value: bytes) -> bytes:
    return value[:1] + bytes(16) + value[17:]


def damaged(value: bytes) -> bytes:
    return value[:17] + b"\xc1"


def expired(value: bytes) -> bytes:
    """Return an answer of a machine whose clock is behind."""
    entry = msgspec.msgpack.decode(value[17:], type=CachedResult)
    past = msgspec.structs.replace(entry, expires_at=time.time() - 1.0)  # noqa: TID251 - stored
    return value[:17] + msgspec.msgpack.encode(past)


def claimed_under_another_secret(value: bytes) -> bytes:
    return b"\x03" + bytes(16) + b"somebody"


@pytest.mark.parametrize(
    "change", [of_another_secret, damaged, expired, claimed_under_another_secret]
)
async def test_a_value_that_answers_nobody_keeps_nobody_waiting(
    change: Callable[[bytes], bytes], tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    redis = connect(own.url, timeout=60.0)
    async with sharing_workers(tmp_path, own, stub, lease=_LONG) as (one, two):
        await ask(one, "a")

        async def is_stored() -> bool:
            names = await redis.keys("sg:r:*")
            values = [await redis.get(name) or b"" for name in names]
            return [value[:1] for value in values] == [b"\x01"]

        await eventually(is_stored)
        (name,) = await redis.keys("sg:r:*")
        stored = await redis.get(name)
        assert isinstance(stored, bytes)
        await redis.set(name, change(stored))
        before = written(own)

        response = await ask(two, "a", **{"x-request-timeout": "4"})
    await redis.aclose()

    assert (response.status, response.json()["usage"]["computed"]) == (200, 1)
    # A claim that was refused, one in the place of the value, and the answer: it did not wait.
    assert written(own) - before <= 3


def failing(status: int, code: str) -> Behaviour:
    """Return what fails every item for good."""

    async def fail_all(stub: StubBackend, call: Call, reply: Reply) -> None:
        for index in range(len(call.items)):
            await reply.send(
                Failed(index=index, status=status, code=code, detail="It is odd.", retryable=False)
            )
        await reply.end(stub.report)

    return fail_all


async def answer_partly(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer items of which a part failed."""
    frames = [echo(call, index, stub.backend_id) for index in range(len(call.items))]
    await reply.send(*[replace(frame, is_partial=True) for frame in frames])
    await reply.end(stub.report)


@pytest.mark.parametrize(
    ("behaviour", "shown"),
    [
        (failing(500, "odd"), 502),
        (failing(422, "algorithm_too_slow"), 422),
        (answer_partly, 200),
    ],
)
@pytest.mark.parametrize("texts", [("a",), ("a", "b")])
async def test_the_claim_on_what_failed_is_released(
    texts: Sequence[str],
    behaviour: Behaviour,
    shown: int,
    tmp_path: Path,
    own: Valkey,
    stub: StubBackend,
) -> None:
    """Also where another try may have another result, which is therefore not stored."""
    redis = connect(own.url, timeout=60.0)
    stub.behaviour = behaviour
    async with sharing_workers(tmp_path, own, stub, lease=600.0, names=["one"]) as (one,):
        response = await ask(one, *texts)

        async def is_released() -> bool:
            return await redis.keys("sg:r:*") == []

        await eventually(is_released)
    await redis.aclose()

    assert response.status == shown
