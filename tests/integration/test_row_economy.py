"""How many rows an item costs: what is known, joined or asked twice is not computed again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.wire.protocol import (
    ChooseItem,
    ClassifyParameters,
    Done,
    EmbedParameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from testing.model_repository import (
    DIMENSIONS,
    WORDS,
    write_head,
    write_model,
    write_repository,
)
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
TWENTY = [f"{one} {two}" for one in WORDS[:5] for two in WORDS[:4]]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    models = write_repository(tmp_path / "models")
    write_head(models, "nli", ["contradiction", "neutral", "entailment"])
    for name, task in (
        ("zero-shot-entailment", "zero-shot"),
        ("multiple-choice", "choose"),
        ("cross-encoder", "rerank"),
    ):
        manifest = {"kind": "algorithm", "algorithm": name, "uses": ["nli"], "tasks": [task]}
        write_model(models, name, manifest)
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


async def cost(backend: Backend, model: str, labels: list[str], text: str) -> tuple[int, int]:
    """Return how many rows were computed for a zero-shot question, and how many were known."""
    parameters = ZeroShotParameters(labels=labels)
    (outcome,) = await backend.ask(model, Task.ZERO_SHOT, [text], parameters=parameters)
    assert isinstance(outcome, Done), outcome
    return outcome.rows, outcome.known


async def test_one_label_more_computes_one_row(backend: Backend) -> None:
    model = "zero-shot-entailment"

    assert await cost(backend, model, TWENTY, "the film") == (20, 0)
    assert await cost(backend, model, [*TWENTY, "paris"], "the film") == (1, 20)
    assert await cost(backend, model, TWENTY[::-1], "the film") == (0, 20)


async def test_labels_by_embedding_are_known_whatever_the_text(backend: Backend) -> None:
    # The text, the labels, and the template without one.
    assert await cost(backend, "topics", TWENTY, "the film") == (22, 0)
    assert await cost(backend, "topics", TWENTY, "another text") == (1, 21)
    assert await cost(backend, "topics", [*TWENTY, "paris"], "another text") == (1, 22)


async def test_equal_items_at_once_compute_their_rows_once(backend: Backend) -> None:
    parameters = ZeroShotParameters(labels=TWENTY)

    outcomes = await backend.ask(
        "zero-shot-entailment", Task.ZERO_SHOT, ["the film"] * 4, parameters=parameters
    )

    assert sum(o.rows for o in outcomes if isinstance(o, Done)) == 20
    assert sum(o.known for o in outcomes if isinstance(o, Done)) == 60


async def test_equal_choices_are_one_row(backend: Backend) -> None:
    item = ChooseItem(prompt="the film", choices=["good", "bad", "good"])

    (outcome,) = await backend.ask("multiple-choice", Task.CHOOSE, [item])

    assert isinstance(outcome, Done)
    assert (outcome.rows, outcome.known) == (2, 1)


async def test_a_row_is_the_same_whoever_asks_it(backend: Backend) -> None:
    """A pair assembled from ids and one that was tokenized as a whole are one row."""
    await cost(backend, "zero-shot-entailment", ["film"], "good")
    parameters = RerankParameters(query="good")

    (pair,) = await backend.ask("nli", Task.CLASSIFY, [("good", "This text is about film.")])
    (document,) = await backend.ask(
        "cross-encoder", Task.RERANK, ["This text is about film."], parameters=parameters
    )

    assert isinstance(pair, Done)
    assert isinstance(document, Done)
    assert (pair.rows, document.rows) == (0, 0)


async def test_an_item_has_the_same_tokens_however_many_rows_are_known(backend: Backend) -> None:
    outcomes = []
    for texts in (["good film"], ["good film"], ["good film", "paris", "paris"]):
        outcomes += await backend.ask("nli", Task.CLASSIFY, texts)

    counted = [(o.tokens, o.known_tokens) for o in outcomes if isinstance(o, Done)]
    whole = counted[0][0]
    assert whole > 2
    assert counted[:3] == [(whole, 0), (0, whole), (0, whole)]
    assert sorted(map(sum, counted[3:])) == [whole - 1] * 2
    assert sorted(tokens for tokens, _ in counted[3:]) == [0, whole - 1]


async def test_what_another_tenant_asked_is_not_known(backend: Backend) -> None:
    counted = []
    for scope in ("one", "two"):
        parameters = ZeroShotParameters(labels=TWENTY)
        (outcome,) = await backend.ask(
            "zero-shot-entailment", Task.ZERO_SHOT, ["film"], parameters=parameters, scope=scope
        )
        assert isinstance(outcome, Done)
        counted.append(outcome.rows)

    assert counted == [20, 20]


async def test_a_query_s_row_is_shared_by_its_documents(backend: Backend) -> None:
    documents = ["good", "bad", "film", "money"]
    parameters = RerankParameters(query="the card")

    outcomes = await backend.ask("tiny", Task.RERANK, documents, parameters=parameters)

    assert sum(o.rows for o in outcomes if isinstance(o, Done)) == 5


async def test_shorter_vectors_and_other_functions_ask_no_new_row(backend: Backend) -> None:
    questions = [
        ("tiny", Task.EMBED, EmbedParameters()),
        ("tiny", Task.EMBED, EmbedParameters(dimensions=2, normalize=False)),
        ("mood", Task.CLASSIFY, ClassifyParameters()),
        ("mood", Task.CLASSIFY, ClassifyParameters(function="none")),
    ]
    rows = []
    for model, task, parameters in questions:
        (outcome,) = await backend.ask(model, task, ["film"], parameters=parameters)
        assert isinstance(outcome, Done)
        rows.append(outcome.rows)

    assert rows == [1, 0, 0, 0]


async def test_concurrent_questions_join(backend: Backend) -> None:
    asked = [cost(backend, "zero-shot-entailment", TWENTY, "good film") for _ in range(3)]

    counted = await asyncio.gather(*asked)

    assert sum(rows for rows, _ in counted) == 20
    assert sum(known for _, known in counted) == 40
