"""Items through a whole backend in this process: what is answered, and what is refused."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.wire.protocol import (
    ClassifyParameters,
    Done,
    EmbedParameters,
    Failed,
    InferParameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from testing.model_repository import DIMENSIONS, id_of, write_repository
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor
from tests.support.quantized import make_dynamic

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    executor = DummyExecutor(dimensions=DIMENSIONS, worker_threads=2, poison=id_of("paris"))
    async with running_backend(models, executor, max_body_bytes=50_000) as running:
        yield running


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
    assert "the encoder `tiny` reads at most 32" in outcome.detail
    assert "secret" not in outcome.detail


async def test_a_bad_item_leaves_the_others_alone(backend: Backend) -> None:
    texts = ["good", "", "paris", "film"]

    good, empty, poisoned, film = await backend.ask("mood", Task.CLASSIFY, texts)

    assert isinstance(good, Done)
    assert isinstance(film, Done)
    assert isinstance(empty, Failed)
    assert isinstance(poisoned, Failed)
    assert (poisoned.status, poisoned.code, poisoned.retryable) == (500, "model_failed", True)


async def test_rows_of_a_dynamic_int8_model_never_share_a_batch(tmp_path: Path) -> None:
    """Its answers among others are, to the bit, those it gives alone."""
    models = write_repository(tmp_path / "models", real=True)
    graph = models / "tiny" / "1" / "model.onnx"
    graph.write_bytes(make_dynamic(graph.read_bytes()))
    texts = ["good film", "bad card is the money about this text", "paris", "!!!! ???? ,,,,"]

    async with running_backend(models, row_cache_bytes=0) as backend:
        together = await backend.ask("tiny", Task.EMBED, texts)
        apart = [await backend.answer("tiny", Task.EMBED, text) for text in texts]
        statistics = backend.batchers[0].statistics()

    done = [outcome for outcome in together if isinstance(outcome, Done)]
    assert [msgspec.json.decode(outcome.result) for outcome in done] == apart
    assert statistics.batches == statistics.rows == 8
