"""A worker whose tenant has small limits, and a worker that never reached a backend."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.types import Rule
from tests.support.stub_backend import StubBackend
from tests.support.worker import Response, RunningWorker, classify, post, running_worker

pytestmark = pytest.mark.anyio
_REQUESTS = Rule(name="hour", unit="requests", capacity=3, window=3600.0)
_ITEMS = Rule(name="items", unit="items", capacity=4, window=3600.0)


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


@pytest.fixture
async def limited(tmp_path: Path, valkey: str, stub: StubBackend) -> AsyncIterator[RunningWorker]:
    async with running_worker(tmp_path, valkey, [stub], rules=(_REQUESTS, _ITEMS)) as running:
        yield running


async def ask(worker: RunningWorker, *texts: str) -> Response:
    async with worker.connect() as connection:
        await connection.send(post("/v1/classify", classify(*texts)))
        return await connection.response()


async def test_a_used_up_limit_says_when_to_come_back(limited: RunningWorker) -> None:
    allowed = [await ask(limited, "a") for _ in range(3)]
    refused = await ask(limited, "a")

    assert [response.status for response in allowed] == [200, 200, 200]
    assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
    assert "`hour` of requests" in refused.json()["detail"]
    assert refused.headers["ratelimit-policy"] == '"hour";q=3;w=3600, "items";q=4;w=3600'
    assert '"hour";r=0;' in refused.headers["ratelimit"]
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert int(refused.headers["retry-after-ms"]) > 1000


async def test_more_items_than_the_limit_ever_allows_are_refused_for_good(
    limited: RunningWorker, stub: StubBackend
) -> None:
    refused = await ask(limited, "a", "b", "c", "d", "e")
    smaller = await ask(limited, "a", "b", "c", "d")

    assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
    assert "send fewer items" in refused.json()["detail"]
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert smaller.status == 200


async def test_a_worker_that_never_reached_a_backend_asks_to_try_again(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    await stub.stop()
    async with running_worker(tmp_path, valkey, [stub], routing={"probe_interval": 0.06}) as worker:
        refused = await ask(worker, "a")
        await stub.start()
        await stub.wait_for(lambda: stub.probes > 0)
        async with asyncio.timeout(10):
            while (answered := await ask(worker, "a")).status == 503:
                pass  # the probe's answer is on its way

    assert (refused.status, refused.json()["code"]) == (503, "upstream_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert answered.status == 200
