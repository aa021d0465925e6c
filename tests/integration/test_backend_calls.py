"""Calls to a whole backend in this process: every part is real but the model's arithmetic."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.executors.dummy import DummyExecutor, PacedExecutor
from backends.protocol import (
    CALL_PATH,
    STATE_PATH,
    TOKEN_HEADER,
    BackendState,
    ClassifyParameters,
    Done,
    EmbedParameters,
    Failed,
    InferParameters,
    Refusal,
    Report,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from tests.support.backend_calls import Backend, Exchange, running_backend
from tests.support.backend_repository import DIMENSIONS, id_of, write_repository
from tests.support.gate import Gate
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    executor = DummyExecutor(dimensions=DIMENSIONS, lanes=2, poison=id_of("paris"))
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


def refusal(exchange: Exchange) -> Refusal:
    return msgspec.msgpack.decode(exchange.body, type=Refusal)


async def failure(backend: Backend, model: str, task: Task, item: Any, **changes: Any) -> Failed:
    (outcome,) = await backend.ask(model, task, [item], **changes)
    assert isinstance(outcome, Failed), outcome
    return outcome


# What is answered


async def test_classify_gives_every_label_best_first(backend: Backend) -> None:
    answer = await backend.answer("mood", Task.CLASSIFY, "good film")

    scores = [label["score"] for label in answer["labels"]]
    assert {label["label"] for label in answer["labels"]} == {"negative", "positive"}
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1.0, abs=1e-5)


async def test_top_k_keeps_the_best_and_more_than_there_are_is_all(backend: Backend) -> None:
    for top_k, count in ((1, 1), (2, 2), (100, 3)):
        parameters = ClassifyParameters(top_k=top_k)
        answer = await backend.answer("intents", Task.CLASSIFY, "card", parameters=parameters)

        assert len(answer["labels"]) == count


async def test_a_pair_is_not_its_parts_joined(backend: Backend) -> None:
    pair = await backend.answer("mood", Task.CLASSIFY, ("good", "film"))

    assert pair != await backend.answer("mood", Task.CLASSIFY, "good film")


async def test_sigmoid_scores_need_not_add_up(backend: Backend) -> None:
    logits, scores = [
        {
            label["label"]: label["score"]
            for label in (
                await backend.answer(
                    "mood", Task.CLASSIFY, "good", parameters=ClassifyParameters(function=function)
                )
            )["labels"]
        }
        for function in ("none", "sigmoid")
    ]

    for label, logit in logits.items():
        assert scores[label] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)


async def test_an_embedding_has_length_one_and_the_dimensions_asked_for(backend: Backend) -> None:
    whole = await backend.answer("tiny", Task.EMBED, "good film")
    short = await backend.answer(
        "tiny", Task.EMBED, "good film", parameters=EmbedParameters(dimensions=3)
    )

    assert len(whole["embedding"]) == DIMENSIONS
    assert math.hypot(*whole["embedding"]) == pytest.approx(1.0, abs=1e-6)
    assert len(short["embedding"]) == 3
    assert math.hypot(*short["embedding"]) == pytest.approx(1.0, abs=1e-6)


async def test_a_document_equal_to_the_query_scores_one(backend: Backend) -> None:
    parameters = RerankParameters(query="good film")
    outcomes = await backend.ask(
        "tiny", Task.RERANK, ["good film", "bad card"], parameters=parameters
    )

    same, other = [msgspec.json.decode(o.result)["score"] for o in outcomes if isinstance(o, Done)]
    assert same == pytest.approx(1.0, abs=1e-5)
    assert other < same


async def test_zero_shot_ranks_the_caller_s_labels(backend: Backend) -> None:
    parameters = ZeroShotParameters(labels=["film", "money", "card"])
    answer = await backend.answer("topics", Task.ZERO_SHOT, "the film", parameters=parameters)

    assert {label["label"] for label in answer["labels"]} == {"film", "money", "card"}
    assert sum(label["score"] for label in answer["labels"]) == pytest.approx(1.0, abs=1e-5)


async def test_a_template_of_the_label_alone_is_allowed(backend: Backend) -> None:
    parameters = ZeroShotParameters(labels=["film", "money"], hypothesis_template="{}")
    answer = await backend.answer("topics", Task.ZERO_SHOT, "film", parameters=parameters)

    assert answer["labels"][0]["label"] == "film"


async def test_choose_picks_the_choice_equal_to_the_prompt(backend: Backend) -> None:
    item = {"prompt": "good film", "choices": ["bad card", "good film"]}
    answer = await backend.answer("topics", Task.CHOOSE, item)

    assert answer["choice"] == 1
    assert len(answer["scores"]) == 2


async def test_entities_lie_where_the_text_says(backend: Backend) -> None:
    text = "é the  money, film"
    answer = await backend.answer("names", Task.ENTITIES, text)

    for entity in answer["entities"]:
        assert entity["text"] == text[entity["start"] : entity["end"]]
        assert entity["label"] == "PER"


@pytest.mark.parametrize("item", ["bad film", {"text": "bad film", "topics": ["film", "card"]}])
async def test_a_review_is_of_every_model_below(backend: Backend, item: object) -> None:
    parameters = InferParameters(parameters={"threshold": 0})
    answer = await backend.answer("reviewer", Task.INFER, item, parameters=parameters)

    assert set(answer) == {"sentiment", "topics", "intent", "needs_attention"}
    assert (answer["intent"] is not None) is answer["needs_attention"]
    assert answer["needs_attention"] is (answer["sentiment"]["label"] == "negative")


async def test_models_over_one_encoder_share_its_rows(backend: Backend) -> None:
    parameters = ZeroShotParameters(labels=["film", "card"])
    await backend.ask("topics", Task.ZERO_SHOT, ["money"], parameters=parameters)

    rows = []
    for model, task, given in (
        ("mood", Task.CLASSIFY, None),
        ("intents", Task.CLASSIFY, None),
        ("topics", Task.ZERO_SHOT, parameters),
    ):
        (outcome,) = await backend.ask(model, task, ["a new text"], parameters=given)
        assert isinstance(outcome, Done)
        rows.append(outcome.rows)

    assert rows == [1, 0, 0]


async def test_another_tenant_s_rows_are_computed_and_counted_again(backend: Backend) -> None:
    counted = []
    for scope in ("one", "two", "one"):
        (outcome,) = await backend.ask("mood", Task.CLASSIFY, ["good film"], scope=scope)
        assert isinstance(outcome, Done)
        counted.append((outcome.rows, outcome.tokens))

    assert counted == [(1, 4), (1, 4), (0, 0)]


# What is refused, item by item


@pytest.mark.parametrize(
    ("model", "task", "item", "parameters", "code"),
    [
        ("mood", Task.CLASSIFY, "", None, "empty_input"),
        ("mood", Task.CLASSIFY, " \n", None, "empty_input"),
        ("mood", Task.CLASSIFY, "good " * 40, None, "input_too_long"),
        ("mood", Task.CLASSIFY, "x" * 40_000, None, "input_too_long"),
        ("mood", Task.CLASSIFY, 7, None, "bad_item"),
        ("mood", Task.CLASSIFY, "good", ClassifyParameters(top_k=0), "bad_top_k"),
        ("tiny", Task.EMBED, "good", EmbedParameters(dimensions=9), "bad_dimensions"),
        ("tiny", Task.EMBED, "good", EmbedParameters(dimensions=0), "bad_dimensions"),
        ("topics", Task.ZERO_SHOT, "good", ZeroShotParameters(labels=[]), "no_labels"),
        ("topics", Task.ZERO_SHOT, "x", ZeroShotParameters(labels=["a", "a"]), "duplicate_labels"),
        ("topics", Task.ZERO_SHOT, "good", ZeroShotParameters(labels=["a", " "]), "empty_label"),
        (
            "topics",
            Task.ZERO_SHOT,
            "good",
            ZeroShotParameters(labels=[str(n) for n in range(257)]),
            "too_many_labels",
        ),
        (
            "topics",
            Task.ZERO_SHOT,
            "good",
            ZeroShotParameters(labels=["a"], hypothesis_template="no slot"),
            "bad_template",
        ),
        ("topics", Task.CHOOSE, {"prompt": "good", "choices": []}, None, "no_choices"),
        ("reviewer", Task.INFER, {"texts": []}, None, "bad_item"),
        ("reviewer", Task.INFER, "", None, "empty_input"),
        (
            "reviewer",
            Task.INFER,
            "good",
            InferParameters(parameters={"mood": 1}),
            "unknown_parameter",
        ),
        (
            "reviewer",
            Task.INFER,
            "good",
            InferParameters(parameters={"threshold": True}),
            "bad_parameter",
        ),
    ],
)
async def test_a_wrong_item_is_refused_by_code_and_for_good(
    backend: Backend, model: str, task: Task, item: object, parameters: Any, code: str
) -> None:
    outcome = await failure(backend, model, task, item, parameters=parameters)

    assert (outcome.status, outcome.code, outcome.retryable) == (422, code, False)


async def test_a_refusal_says_tokens_and_limit_and_never_the_text(backend: Backend) -> None:
    outcome = await failure(backend, "mood", Task.CLASSIFY, "secret " * 40)

    assert outcome.code == "input_too_long"
    assert "tokens; `tiny` reads at most 32" in outcome.detail
    assert "secret" not in outcome.detail


async def test_a_bad_item_leaves_the_others_alone(backend: Backend) -> None:
    texts = ["good", "", "paris", "film"]

    good, empty, poisoned, film = await backend.ask("mood", Task.CLASSIFY, texts)

    assert isinstance(good, Done)
    assert isinstance(film, Done)
    assert isinstance(empty, Failed)
    assert isinstance(poisoned, Failed)
    assert (poisoned.status, poisoned.code, poisoned.retryable) == (500, "model_failed", True)


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
    ]

    for body in bodies:
        exchange = await Exchange(backend.routes, "POST", CALL_PATH, body).run()

        assert exchange.status == 400
        assert refusal(exchange).code == "bad_call"


async def test_a_body_over_the_limit_is_refused(backend: Backend) -> None:
    call = backend.call("mood", Task.CLASSIFY, ["good " * 20_000])

    unannounced = await backend.exchange(call).run()
    announced = await backend.exchange(call, {"content-length": "50001"}).run()

    assert (unannounced.status, announced.status) == (413, 413)


async def test_a_full_queue_refuses_calls_with_a_time_to_return(
    paced: Backend, gate: Gate
) -> None:
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

    await until(lambda: len(exchange.frames) == 1)
    assert not task.done()
    gate.open()
    await task

    refused, done, report = exchange.frames
    assert isinstance(refused, Failed)
    assert isinstance(done, Done)
    assert isinstance(report, Report)
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


# What it says of itself


async def test_state_names_models_provider_and_load(backend: Backend) -> None:
    exchange = await backend.get(STATE_PATH)

    state = msgspec.msgpack.decode(exchange.body, type=BackendState)
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
    assert "head.npz: it is no file of head weights" in missing[0]
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
    assert "tiny: a lane of the executor died" in msgspec.json.decode(ready.body)["missing"][0]


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
    assert (b"allow", b"POST") in wrong.sent[0]["headers"]
