"""Calls to a whole backend in this process: every part is real but the model's arithmetic."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.backends.app import drain
from sluicegate.wire.protocol import (
    CALL_PATH,
    STATE_PATH,
    TOKEN_HEADER,
    Done,
    Failed,
    Refusal,
    Report,
    ServingState,
    Task,
)
from testing.model_repository import DIMENSIONS, id_of, write_repository
from testing.waiting import until
from tests.support.backend_calls import AsgiExchange, Backend, running_backend
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
NESTED = b"\x91" * 20_000 + b"\xc0"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    executor = DummyExecutor(dimensions=DIMENSIONS, worker_threads=2, poison=id_of("paris"))
    async with running_backend(models, executor, max_body_bytes=50_000) as running:
        yield running


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def paced(models: Path, gate: Gate) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        executor = PacedExecutor(gate, dimensions=DIMENSIONS)
        running = running_backend(models, executor, max_queue_rows=8)
        # The gate opens before the lanes are joined, even when a test failed.
        backend = await stack.enter_async_context(running)
        stack.callback(gate.open)
        yield backend


def refusal(exchange: AsgiExchange) -> Refusal:
    return msgspec.msgpack.decode(exchange.body, type=Refusal)


async def failure(backend: Backend, model: str, task: Task, item: Any, **changes: Any) -> Failed:
    (outcome,) = await backend.ask(model, task, [item], **changes)
    assert isinstance(outcome, Failed), outcome
    return outcome


# What has a deadline


@pytest.mark.parametrize("remaining", [0.0, -1.0, math.nan])
async def test_an_item_whose_time_is_over_is_not_begun(backend: Backend, remaining: float) -> None:
    outcome = await failure(backend, "mood", Task.CLASSIFY, "good", remaining=remaining)

    assert (outcome.status, outcome.code, outcome.retryable) == (504, "deadline_exceeded", False)
    assert backend.engine.report().queued_rows == 0


async def test_an_item_with_no_end_of_time_is_answered(backend: Backend) -> None:
    await backend.answer("mood", Task.CLASSIFY, "good", remaining=math.inf)


async def test_an_item_ends_at_its_deadline_while_it_waits(paced: Backend, gate: Gate) -> None:
    outcome = await failure(paced, "mood", Task.CLASSIFY, "good", remaining=0.05)

    assert (outcome.status, outcome.code) == (504, "deadline_exceeded")


# What is refused as a whole


async def test_what_is_not_served_is_not_found(backend: Backend) -> None:
    for call in (
        backend.call("nothing", Task.CLASSIFY, ["good"]),
        backend.call("mood", Task.EMBED, ["good"]),
    ):
        exchange = await backend.exchange(call).run()

        assert exchange.status == 404
        assert (refusal(exchange).code, refusal(exchange).retryable) == ("model_not_found", False)


async def test_another_revision_or_profile_is_a_retryable_mismatch(backend: Backend) -> None:
    for change in ({"revision": "0" * 12}, {"profile": "fp16"}):
        call = backend.call("mood", Task.CLASSIFY, ["good"], **change)
        exchange = await backend.exchange(call).run()

        assert exchange.status == 409
        assert (refusal(exchange).code, refusal(exchange).retryable) == ("revision_mismatch", True)


async def test_what_is_no_call_is_refused(backend: Backend) -> None:
    call = backend.call("mood", Task.CLASSIFY, ["good"])
    bodies = [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"model": "mood"}),
        msgspec.msgpack.encode(msgspec.structs.replace(call, version=2)),
        msgspec.msgpack.encode(msgspec.structs.replace(call, items=[])),
        msgspec.msgpack.encode(msgspec.structs.replace(call, parameters=b"\x81\xa1x\x01")),
        b"\x81\xa5model\xa1\xff",
        b"\x81\xa1x" + NESTED,
        msgspec.msgpack.encode(
            msgspec.structs.replace(
                backend.call("reviewer", Task.INFER, ["good"]),
                parameters=b"\x81\xaaparameters\x81\xa1x" + NESTED,
            )
        ),
    ]

    for body in bodies:
        exchange = await AsgiExchange(backend.routes, "POST", CALL_PATH, body).run()

        assert exchange.status == 400
        assert refusal(exchange).code == "bad_call"


@pytest.mark.parametrize("body", [NESTED, b"\xa1\xff"])
async def test_an_item_that_cannot_be_read_is_not_tried_elsewhere(
    backend: Backend, body: bytes
) -> None:
    call = backend.call("reviewer", Task.INFER, ["good", "good"])
    items = [msgspec.structs.replace(call.items[0], body=body), call.items[1]]

    exchange = await backend.exchange(msgspec.structs.replace(call, items=items)).run()

    outcomes = {o.index: o for o in exchange.frames if isinstance(o, Done | Failed)}
    refused = outcomes[0]
    assert isinstance(refused, Failed)
    assert (refused.status, refused.code, refused.retryable) == (422, "bad_item", False)
    assert isinstance(outcomes[1], Done)


async def test_a_call_of_more_rows_than_the_queue_holds_is_answered(models: Path) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    words = ["".join(letters) for letters in itertools.product("abcdefghi", repeat=3)]
    items = [{"prompt": f"film {word}", "choices": [f"good {word}", "bad"]} for word in words]

    async with running_backend(models, executor, max_queue_rows=520) as backend:
        asking = asyncio.create_task(backend.ask("topics", Task.CHOOSE, items))
        await until(lambda: backend.engine.report().queued_rows >= 400)
        gate.open()
        outcomes = await asking

    assert len(outcomes) == len(items)
    assert all(isinstance(outcome, Done) for outcome in outcomes)


async def test_a_call_whose_items_overflow_the_queue_together_is_answered(models: Path) -> None:
    """32 prompts of 256 options each are 8,224 rows, and 4,096 may wait."""
    letters = itertools.product("abcdefghijklmnopqrstu", repeat=3)
    words = iter("".join(each) for each in letters)
    items = [
        {"prompt": f"film {n}", "choices": [" ".join(next(words)) for _ in range(256)]}
        for n in range(32)
    ]

    async with running_backend(
        models, DummyExecutor(dimensions=DIMENSIONS, worker_threads=2)
    ) as backend:
        outcomes = await backend.ask("topics", Task.CHOOSE, items)

    assert [type(outcome) for outcome in outcomes] == [Done] * 32
    assert sum(outcome.rows for outcome in outcomes if isinstance(outcome, Done)) > 8_000


async def test_a_call_of_more_items_than_anybody_sends_is_refused(models: Path) -> None:
    executor = DummyExecutor(dimensions=DIMENSIONS)
    async with running_backend(models, executor) as backend:
        call = backend.call("mood", Task.CLASSIFY, ["good"])
        items = call.items * 65_537

        exchange = await backend.exchange(msgspec.structs.replace(call, items=items)).run()

        assert (exchange.status, refusal(exchange).code) == (413, "call_too_large")


async def test_a_body_over_the_limit_is_refused(backend: Backend) -> None:
    call = backend.call("mood", Task.CLASSIFY, ["good " * 20_000])

    unannounced = await backend.exchange(call).run()
    announced = await backend.exchange(call, {"content-length": "50001"}).run()

    assert (unannounced.status, announced.status) == (413, 413)


async def test_a_full_queue_refuses_calls_with_a_time_to_return(paced: Backend, gate: Gate) -> None:
    first = asyncio.create_task(paced.ask("mood", Task.CLASSIFY, ["good"]))
    await until(lambda: gate.arrived == 1)
    texts = ["film", "money", "card", "is", "the", "about", "this", "text"]
    waiting = asyncio.create_task(paced.ask("mood", Task.CLASSIFY, texts))
    await until(lambda: paced.engine.report().queued_rows == 8)

    exchange = await paced.exchange(paced.call("mood", Task.CLASSIFY, ["bad"])).run()
    gate.open()
    await asyncio.gather(first, waiting)

    assert exchange.status == 503
    assert refusal(exchange).code == "overloaded"
    assert refusal(exchange).retryable
    assert (refusal(exchange).retry_after or 0) > 0


async def test_only_who_knows_the_token_is_answered(models: Path) -> None:
    async with running_backend(models, DummyExecutor(), token="a shared secret") as backend:
        call = backend.call("mood", Task.CLASSIFY, ["good"])
        statuses = [
            (await backend.exchange(call, headers).run()).status
            for headers in ({}, {TOKEN_HEADER: "wrong"}, {TOKEN_HEADER: "a shared secret"})
        ]
        state = await backend.get(STATE_PATH)
        health = await backend.get("/health/ready")

    assert statuses == [401, 401, 200]
    assert state.status == 401
    assert health.status == 200


# How it is answered


async def test_an_outcome_is_sent_while_others_still_run(paced: Backend, gate: Gate) -> None:
    exchange = paced.exchange(paced.call("mood", Task.CLASSIFY, ["", "good"]))
    task = asyncio.create_task(exchange.run())

    await until(lambda: len(exchange.frames) == 2)
    assert not task.done()
    gate.open()
    await task

    # Each moment's outcomes come with a report.
    assert list(map(type, exchange.frames)) == [Failed, Report, Done, Report]
    assert exchange.sent[-1]["more_body"] is False


async def test_a_client_that_leaves_takes_its_waiting_rows_along(
    paced: Backend, gate: Gate
) -> None:
    first = asyncio.create_task(paced.ask("mood", Task.CLASSIFY, ["good"]))
    await until(lambda: gate.arrived == 1)
    exchange = paced.exchange(paced.call("mood", Task.CLASSIFY, ["film", "money"]))
    task = asyncio.create_task(exchange.run())
    await until(lambda: paced.engine.report().queued_rows == 2)

    exchange.leave()
    await task
    gate.open()
    await first
    await until(lambda: paced.engine.report().queued_rows == 0)

    assert exchange.sent == []
    assert gate.arrived == 1
    assert paced.engine.calls_in_flight == 0


async def test_a_backend_that_stops_refuses_new_calls_and_finishes_its_own(
    paced: Backend, gate: Gate
) -> None:
    running = asyncio.create_task(paced.ask("mood", Task.CLASSIFY, ["good"]))
    await until(lambda: gate.arrived == 1)
    paced.engine.draining = True

    late = await paced.exchange(paced.call("mood", Task.CLASSIFY, ["bad"])).run()
    ready = await paced.get("/health/ready")
    gate.open()
    (outcome,) = await running

    assert (late.status, refusal(late).code, refusal(late).retryable) == (503, "not_ready", True)
    assert ready.status == 503
    assert isinstance(outcome, Done)


async def test_draining_waits_for_calls_in_flight_and_no_longer_than_its_bound(
    paced: Backend, gate: Gate
) -> None:
    running = asyncio.create_task(paced.ask("mood", Task.CLASSIFY, ["good"]))
    await until(lambda: gate.arrived == 1)

    await drain(paced.engine, 0.01)
    cut = paced.engine.calls_in_flight
    gate.open()
    await drain(paced.engine, 30.0)

    assert cut == 1
    assert paced.engine.calls_in_flight == 0
    assert isinstance((await running)[0], Done)


# What it says of itself


async def test_state_names_models_provider_and_load(backend: Backend) -> None:
    exchange = await backend.get(STATE_PATH)

    state = msgspec.msgpack.decode(exchange.body, type=ServingState)
    assert (state.backend_id, state.region, state.ready) == ("eu-0", "eu", True)
    assert state.provider == "DummyExecutionProvider"
    assert {model.name for model in state.models} == {
        "tiny",
        "mood",
        "intents",
        "names",
        "topics",
        "reviewer",
    }
    assert backend.info("intents").labels == ["card", "money", "other"]
    assert backend.info("reviewer").tasks == [Task.INFER]
    assert backend.info("tiny").dimensions == DIMENSIONS


async def test_a_broken_model_is_missing_and_the_others_serve(models: Path) -> None:
    (models / "mood" / "1" / "head.npz").write_bytes(b"broken")
    async with running_backend(models, DummyExecutor()) as backend:
        ready = msgspec.json.decode((await backend.get("/health/ready")).body)
        await backend.answer("intents", Task.CLASSIFY, "good")

    assert ready["ready"]
    assert sorted(ready["models"]) == ["intents", "names", "tiny", "topics"]
    missing = sorted(ready["missing"])
    assert missing[0].startswith("mood: ")
    assert "head.npz: " in missing[0]
    assert missing[1] == "reviewer: it builds on `mood`, which is broken"


async def test_a_dead_executor_is_neither_ready_nor_alive(paced: Backend, gate: Gate) -> None:
    gate.failing = SystemExit()
    gate.open()

    outcome = await failure(paced, "mood", Task.CLASSIFY, "good")
    await until(lambda: bool(paced.engine.failures()))
    ready, live = await paced.get("/health/ready"), await paced.get("/health/live")
    late = await paced.exchange(paced.call("mood", Task.CLASSIFY, ["bad"])).run()

    assert (outcome.code, outcome.retryable) == ("executor_died", True)
    assert (ready.status, live.status, late.status) == (503, 503, 503)
    assert (
        "tiny: a worker thread of the executor died"
        in msgspec.json.decode(ready.body)["missing"][0]
    )


async def test_metrics_count_items_and_rows_and_hold_no_input(backend: Backend) -> None:
    await backend.ask("mood", Task.CLASSIFY, ["good film", "", "good film"])

    text = (await backend.get("/metrics")).body.decode()

    done = 'sluicegate_backend_items_total{model="mood",outcome="done",task="classify"} 2.0'
    assert done in text
    assert 'sluicegate_backend_items_total{model="mood",outcome="refused"' in text
    assert 'sluicegate_backend_rows_total{encoder="tiny"} 1.0' in text
    assert "good" not in text


async def test_unknown_paths_and_methods_are_told(backend: Backend) -> None:
    unknown = await backend.get("/v2/call")
    wrong = await backend.get(CALL_PATH)

    assert unknown.status == 404
    assert wrong.status == 405
    assert b"allow: POST\r\n" in wrong.sent[0]["lines"]
