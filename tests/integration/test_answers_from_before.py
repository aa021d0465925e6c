"""Whole workers over a real Valkey: a rollout, an outage, a restart, a purge, and old answers."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from testing.raw_http import Response, post
from testing.stub_backend import StubBackend, refuse, stub_model
from testing.valkey import Valkey
from testing.waiting import eventually
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_OLD, _NEW = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
_ENTRY: Mapping[str, float] = {"stale_while_revalidate": 600, "stale_if_error": 3600}


@pytest.fixture
def own() -> Iterator[Valkey]:
    """A server whose keys only this test writes."""
    with Valkey() as server:
        yield server


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


def worker(
    folder: Path, redis: Valkey, stub: StubBackend, *, entry: Mapping[str, float] = _ENTRY
) -> AbstractAsyncContextManager[RunningWorker]:
    folder.mkdir()
    return running_worker(
        folder,
        redis.url,
        [stub],
        models={"stub": entry},
        routing={"probe_interval": 0.05},
        cache={"redis_timeout": 2.0},
    )


async def ask(running: RunningWorker, *texts: str) -> Response:
    async with running.connect() as connection:
        await connection.send(post("/v1/classify", classify(*texts)))
        return await connection.response()


def roll_out(stub: StubBackend) -> None:
    stub.models = [stub_model(revision=_NEW)]


async def test_another_worker_that_began_after_the_rollout_gives_the_old_answer(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    async with worker(tmp_path / "one", own, stub) as one:
        first = await ask(one, "a")
    roll_out(stub)
    async with worker(tmp_path / "two", own, stub) as two:
        stale = await ask(two, "a")
        await stub.wait_for(lambda: len(stub.calls) == 2)
        fresh = await eventually_fresh(two)
        usage = stale.json()["usage"]

    assert stale.headers["cache-status"] == "sluicegate; hit; detail=stale"
    assert int(stale.headers["age"]) >= 0
    assert stale.json()["results"] == first.json()["results"]
    assert (stale.json()["revision"], fresh.json()["revision"]) == (_OLD, _NEW)
    assert (usage["hit"], usage["computed"], usage["rows"]) == (1, 0, 0)
    assert [(call.revision, call.lane) for call in stub.calls] == [
        (_OLD, "interactive"),
        (_NEW, "bulk"),
    ]


async def eventually_fresh(running: RunningWorker) -> Response:
    found: list[Response] = []

    async def is_fresh() -> bool:
        found.append(await ask(running, "a"))
        return bool(found[-1].json()["revision"] == _NEW)

    await eventually(is_fresh)
    return found[-1]


async def test_the_old_answer_stands_in_while_no_backend_is_there(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    entry = {"cache_ttl": 0.2, "stale_if_error": 3600}
    async with worker(tmp_path / "one", own, stub, entry=entry) as one:
        first = await ask(one, "a")
        await stub.stop()
        old = await ask_until(one, "fwd=stale; detail=stale-if-error")
        missed = await ask(one, "never asked before")

    assert old.json()["results"] == first.json()["results"]
    assert "age" in old.headers
    assert missed.status == 503


async def ask_until(running: RunningWorker, status: str) -> Response:
    found: list[Response] = []

    async def is_said() -> bool:
        found.append(await ask(running, "a"))
        return status in found[-1].headers["cache-status"]

    await eventually(is_said)
    return found[-1]


async def test_a_purged_answer_is_not_given_though_no_backend_answers(
    tmp_path: Path, own: Valkey, stub: StubBackend
) -> None:
    async with worker(tmp_path / "one", own, stub) as one:
        await ask(one, "a")
        stub.behaviour = refuse("overloaded")
        roll_out(stub)
        await ask_until(one, "detail=stale")
        async with Redis.from_url(own.url) as redis:
            control = Control(redis)
            version = await control.raise_epoch("model:stub")
            await control.wait_for_workers(Topic.EPOCHS, version, within=60.0)
        purged = await ask(one, "a")

    assert purged.status == 503
