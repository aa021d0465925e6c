"""A worker whose callers are slow, whose Redis hangs or is away, and that stops in mid-request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from testing.raw_http import Response, post
from testing.stub_backend import StubBackend, answer_when, hang
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.events import events_in
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_PATH = "/v1/classify"


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


async def ask(worker: RunningWorker, request: bytes) -> Response:
    async with worker.connect() as connection:
        await connection.send(request)
        return await connection.response()


async def test_a_body_that_does_not_arrive_ends_with_the_deadline(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    slow = post(_PATH, None, headers={"content-length": "99", "x-request-timeout": "0.2"})
    async with running_worker(tmp_path, valkey, [stub]) as worker, worker.connect() as connection:
        await connection.send(slow, b'{"model"')
        late = await connection.response()

        assert (late.status, late.json()["code"]) == (408, "request_timeout")
        assert await connection.is_closed()


async def test_a_redis_that_hangs_delays_nobody_beyond_the_deadline(
    tmp_path: Path, own_valkey: Valkey, stub: StubBackend
) -> None:
    hurried = post(_PATH, classify("a"), headers={"x-request-timeout": "0.1"})
    async with running_worker(tmp_path, own_valkey.url, [stub]) as worker:
        own_valkey.pause()
        answer = await ask(worker, hurried)  # else it would wait until Redis goes on
        own_valkey.resume()

    assert (answer.status, answer.json()["code"]) == (504, "deadline_exceeded")


async def test_a_request_cut_off_by_the_stop_is_told_to_try_again_and_has_an_event(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    stub.behaviour = hang
    patient = post(_PATH, classify("a"), headers={"x-request-timeout": "60"})
    async with AsyncExitStack() as left:
        routing = {"attempt_timeout": 60.0}
        async with running_worker(tmp_path, valkey, [stub], routing=routing) as worker:
            connection = await left.enter_async_context(worker.connect())
            await connection.send(patient)
            await stub.wait_for(lambda: len(stub.calls) == 1)
        answer = await connection.response()

    assert (answer.status, answer.json()["code"]) == (503, "upstream_unavailable")
    assert answer.headers["retry-after"] == "1"
    (event,) = events_in(worker.settings.events_dir)
    assert (event.id, event.status) == (answer.headers["x-request-id"], 503)


async def test_what_was_purged_stays_purged_for_a_worker_that_starts_without_the_epochs(
    tmp_path: Path, valkey: str, own_valkey: Valkey, stub: StubBackend
) -> None:
    request = post(_PATH, classify("a"))
    redis = connect(own_valkey.url, timeout=60.0)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with running_worker(tmp_path / "one", valkey, [stub], state_url=own_valkey.url) as worker:
        stored = await ask(worker, request)
        control = Control(redis)
        version = await control.raise_epoch("tenant:acme")
        await control.wait_for_workers(Topic.EPOCHS, version, within=60.0)
    await redis.aclose()
    own_valkey.kill()

    async with running_worker(tmp_path / "two", valkey, [stub], state_url=own_valkey.url) as worker:
        answers = [await ask(worker, request) for _ in range(2)]

    assert "stored" in stored.headers["cache-status"]
    assert [("hit" in answer.headers["cache-status"]) for answer in answers] == [False, True]


async def test_what_was_purged_stays_purged_when_the_state_redis_loses_its_epochs(
    tmp_path: Path, valkey: str, own_valkey: Valkey, stub: StubBackend
) -> None:
    first, second = post(_PATH, classify("a")), post(_PATH, classify("b"))
    redis = connect(own_valkey.url, timeout=60.0)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with running_worker(tmp_path / "one", valkey, [stub], state_url=own_valkey.url) as worker:
        stored = [await ask(worker, request) for request in (first, second)]
        control = Control(redis)
        version = await control.raise_epoch("tenant:acme")
        await control.wait_for_workers(Topic.EPOCHS, version, within=60.0)
        own_valkey.flush()
        async with asyncio.timeout(60.0):
            while not (await control.versions()).purge_history:
                pass  # the worker has not looked yet
        running = await ask(worker, first)
    async with running_worker(tmp_path / "two", valkey, [stub], state_url=own_valkey.url) as worker:
        started = await ask(worker, second)
    await redis.aclose()

    assert all("stored" in answer.headers["cache-status"] for answer in stored)
    assert "hit" not in running.headers["cache-status"]
    assert "hit" not in started.headers["cache-status"]


async def test_who_leaves_after_sending_is_billed_and_finds_the_answer(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    request = post(_PATH, classify("asked and left"))

    async with running_worker(tmp_path, valkey, [stub]) as worker:
        async with worker.connect() as connection:
            await connection.send(post(_PATH, classify("never sent whole"))[:-5])
            connection.reset()
        async with worker.connect() as connection:
            await connection.send(request)
            await stub.wait_for(lambda: len(stub.calls) == 1)
            connection.reset()
        gate.set()
        await until(lambda: len(events_in(worker.settings.events_dir)) == 1, what="the event")
        again = await ask(worker, request)

        (left, _) = events_in(worker.settings.events_dir)
    assert (left.status, left.usage.items, left.usage.computed) == (200, 1, 1)
    assert again.json()["usage"]["hit"] == 1
