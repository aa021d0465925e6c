"""A request whose items are divided among backends: one that refuses ends it everywhere."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.wire.protocol import Call, Refusal
from testing.raw_http import Response, post
from testing.stub_backend import Reply, StubBackend
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_RETRY_AFTER = 7.0
TEXTS = [f"text {number}" for number in range(32)]


async def refuse(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Refuse the call as a whole, and say when to come back."""
    refusal = Refusal(code="overloaded", detail="busy", retryable=True, retry_after=_RETRY_AFTER)
    await reply.whole(503, msgspec.msgpack.encode(refusal))


class Holding:
    """Keeps its first call until that is given up, and refuses all others."""

    def __init__(self) -> None:
        self.given_up = asyncio.Event()

    async def __call__(self, stub: StubBackend, call: Call, reply: Reply) -> None:
        if len(stub.calls) > 1:
            await refuse(stub, call, reply)
            return
        try:
            await reply.until_closed()
        finally:
            self.given_up.set()


@pytest.fixture
async def holding(anyio_backend: str) -> Holding:
    return Holding()


@pytest.fixture
async def stubs(holding: Holding) -> AsyncIterator[list[StubBackend]]:
    async with (
        StubBackend(backend_id="eu-0", behaviour=holding) as one,
        StubBackend(backend_id="eu-1", behaviour=refuse) as other,
    ):
        yield [one, other]


@pytest.fixture
async def worker(
    tmp_path: Path, valkey: str, stubs: list[StubBackend]
) -> AsyncIterator[RunningWorker]:
    backends = [{"id": stub.backend_id, "url": stub.url} for stub in stubs]
    regions = [{"name": "eu", "pools": [{"backends": backends}]}]
    async with running_worker(tmp_path, valkey, regions=regions) as running:
        yield running


async def ask(worker: RunningWorker, *texts: str, **fields: str) -> Response:
    async with worker.connect() as connection:
        body = classify(*texts, **fields)
        await connection.send(post("/v1/classify", body, headers={"x-request-timeout": "60"}))
        return await connection.response()


async def test_a_refused_part_ends_the_request_and_withdraws_the_others(
    worker: RunningWorker, stubs: list[StubBackend], holding: Holding
) -> None:
    response = await ask(worker, *TEXTS)
    await asyncio.wait_for(holding.given_up.wait(), 10.0)

    assert (response.status, response.json()["code"]) == (503, "overloaded")
    assert int(response.headers["retry-after"]) >= _RETRY_AFTER
    assert {call.atomic for stub in stubs for call in stub.calls} == {True}
    # Nothing went on to be asked for a request that could not be answered any more.
    assert sum(len(call.items) for stub in stubs for call in stub.calls) <= 2 * len(TEXTS)


async def test_items_that_are_of_use_by_themselves_are_asked_for_as_such(
    worker: RunningWorker, stubs: list[StubBackend], holding: Holding
) -> None:
    asked = asyncio.create_task(ask(worker, *TEXTS, on_error="continue"))
    await stubs[0].wait_for(lambda: bool(stubs[0].calls))
    await stubs[1].wait_for(lambda: bool(stubs[1].calls))

    assert not any(call.atomic for stub in stubs for call in stub.calls)
    assert not holding.given_up.is_set()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
