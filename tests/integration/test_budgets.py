"""A tenant whose budget is used up is refused by a real worker, and told why."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import pytest

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.pricing import NANO
from sluicegate.gateway.ledger.types import Budget
from sluicegate.gateway.types import Usage
from testing.raw_http import KEY, Response, post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from tests.support.events import make_event
from tests.support.ledgers import record
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
HIT = classify("a text that was answered before")


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey, anyio_backend: str
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()  # tests before may have published a document
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(StubBackend())
        folder = tmp_path_factory.mktemp("worker")
        running = running_worker(folder, valkey_server.url, [stub])
        yield await stack.enter_async_context(running)


@pytest.fixture(scope="module")
async def ledger(worker: RunningWorker) -> AsyncIterator[Ledger]:
    """The ledger of the worker, in which the budget of `acme` is used up."""
    with Ledger.create(worker.settings.ledger) as ledger:
        ledger.prices.publish(
            [PriceConfig(model="*", since="2026-01-01", currency="EUR", hit=NANO)]
        )
        for _ in range(3):
            assert (await ask(worker, "/v1/classify", HIT)).status == 200
        ledger.budgets.set("acme", Budget(amount="10", refuse=True))
        event = make_event(1, time=time.time_ns(), usage=Usage.of(hit=11))
        record(ledger, "w", 1, [event])
        yield ledger


async def ask(
    worker: RunningWorker,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    async with worker.connect() as connection:
        method = "GET" if body is None else "POST"
        await connection.send(post(path, body, key=KEY, method=method, headers=headers))
        return await connection.response()


async def watched(worker: RunningWorker, ledger: Ledger) -> None:
    """Have the budgets compared, and the worker know of it."""
    await asyncio.to_thread(ledger.budgets.watch)
    await worker.parts._principals.read_again()


async def test_hits_and_misses_are_refused_in_the_form_of_each_dialect(
    worker: RunningWorker, ledger: Ledger
) -> None:
    await watched(worker, ledger)

    native = [await ask(worker, "/v1/classify", body) for body in (HIT, classify("another"))]
    openai = await ask(worker, "/v1/embeddings", b'{"model":"stub","input":"a text"}')
    cohere = await ask(worker, "/v2/embed", b'{"model":"stub","texts":["a text"]}')
    tei = await ask(worker, "/tei/stub/predict", b'{"inputs":"a text"}')
    batch = await ask(
        worker,
        "/v1/batches",
        b'{"input_file_id":"file-1","endpoint":"/v1/classify","completion_window":"24h"}',
    )

    answers = [*native, openai, cohere, tei, batch]
    assert [answer.status for answer in answers] == [402] * 6
    assert [answer.json()["code"] for answer in native] == ["budget_exhausted"] * 2
    error = openai.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "budget of this month is used up" in error["message"]
    assert (cohere.json()["code"], tei.json()["code"]) == ("budget_exhausted",) * 2
    assert batch.json()["error"]["code"] == "insufficient_quota"


async def test_who_is_refused_can_still_ask_why(worker: RunningWorker, ledger: Ledger) -> None:
    await watched(worker, ledger)

    usage, models = await ask(worker, "/v1/usage"), await ask(worker, "/v1/models")

    assert (usage.status, models.status) == (200, 200)
    budget = usage.json()["budget"]
    assert (budget["amount"], budget["spent"], budget["remaining"]) == (
        "10",
        "11.000000000",
        "0.000000000",
    )


async def test_a_higher_budget_admits_as_soon_as_the_worker_knows(
    worker: RunningWorker, ledger: Ledger
) -> None:
    await watched(worker, ledger)
    keyed = {"idempotency-key": "one"}
    before = [await ask(worker, "/v1/classify", HIT, headers) for headers in ({}, keyed)]

    await asyncio.to_thread(ledger.budgets.set, "acme", Budget(amount="100", refuse=True))
    await watched(worker, ledger)
    after = [await ask(worker, "/v1/classify", HIT, headers) for headers in ({}, keyed)]

    assert [answer.status for answer in (*before, *after)] == [402, 402, 200, 200]
    assert (await ask(worker, "/v1/usage")).json()["budget"]["remaining"] == "89.000000000"
