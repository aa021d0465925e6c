"""Texts that a model cuts: every task says so, or refuses them, and windows cut nothing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.wire.protocol import (
    Done,
    Failed,
    Parameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from testing.model_repository import (
    DIMENSIONS,
    write_encoder,
    write_head,
    write_model,
    write_repository,
)
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
LIMIT = 12
LONG = "good bad film money card is the about this text paris good bad film"
TOKENS = 14 + 2
LABELS = ZeroShotParameters(labels=["money", "film"], hypothesis_template="about {}")
ENTAILED = TOKENS + 2 + 1  # the label's two words, and a separator more
PAIR = TOKENS + 1 + 1
Case = tuple[str, Task, Any, Parameters | None, int]
CASES: dict[str, Case] = {
    "classify": ("mood", Task.CLASSIFY, LONG, None, TOKENS),
    "pair": ("mood", Task.CLASSIFY, ("good", LONG), None, PAIR),
    "embed": ("tiny", Task.EMBED, LONG, None, TOKENS),
    "rerank": ("tiny", Task.RERANK, LONG, RerankParameters(query="good"), TOKENS),
    "rerank of a pair": ("cross", Task.RERANK, LONG, RerankParameters(query="good"), PAIR),
    "zero-shot": ("topics", Task.ZERO_SHOT, LONG, LABELS, TOKENS),
    "zero-shot by pairs": ("entailment", Task.ZERO_SHOT, LONG, LABELS, ENTAILED),
    "choose": ("topics", Task.CHOOSE, {"prompt": LONG, "choices": ["film", "card"]}, None, TOKENS),
    "infer": ("reviewer", Task.INFER, LONG, None, TOKENS),
    "first window": ("first", Task.CLASSIFY, LONG, None, TOKENS),
}


@pytest.fixture
async def backend(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Backend]:
    models = write_repository(tmp_path / "models")
    write_encoder(models, max_tokens=LIMIT, truncate=True)
    write_head(models, "nli", ["contradiction", "neutral", "entailment"])
    for name, algorithm, task, uses in (
        ("entailment", "zero-shot-entailment", "zero-shot", "nli"),
        ("cross", "cross-encoder", "rerank", "nli"),
        ("long", "long-document", "classify", "mood"),
        ("first", "long-document", "classify", "mood"),
    ):
        manifest = {"kind": "algorithm", "algorithm": algorithm, "uses": [uses], "tasks": [task]}
        options = {"long": {"overlap": 2}, "first": {"overlap": 2, "combine": "first"}}.get(name)
        write_model(models, name, manifest | ({"options": options} if options else {}))
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


@pytest.mark.parametrize("case", CASES)
async def test_a_text_that_was_cut_is_marked_with_its_tokens(case: str, backend: Backend) -> None:
    model, task, item, parameters, tokens = CASES[case]

    (outcome,) = await backend.ask(model, task, [item], parameters=parameters)

    assert isinstance(outcome, Done), outcome
    assert outcome.truncated_from == tokens


@pytest.mark.parametrize("case", CASES)
async def test_a_caller_who_wants_no_text_cut_is_told_its_tokens_and_the_limit(
    case: str, backend: Backend
) -> None:
    model, task, item, parameters, tokens = CASES[case]

    (outcome,) = await backend.ask(model, task, [item], parameters=parameters, truncate=False)

    assert isinstance(outcome, Failed), outcome
    assert (outcome.status, outcome.code, outcome.retryable) == (422, "input_too_long", False)
    assert f"{tokens} tokens" in outcome.detail
    assert f"at most {LIMIT}" in outcome.detail


@pytest.mark.parametrize("truncate", [True, False])
async def test_a_text_that_fits_exactly_is_not_cut(backend: Backend, *, truncate: bool) -> None:
    words = " ".join(LONG.split()[: LIMIT - 2])
    pair = ("good", " ".join(LONG.split()[: LIMIT - 4]))

    outcomes = await backend.ask("mood", Task.CLASSIFY, [words, pair], truncate=truncate)

    assert [getattr(outcome, "truncated_from", None) for outcome in outcomes] == [0, 0]


@pytest.mark.parametrize(
    ("model", "task"), [("long", Task.CLASSIFY), ("names", Task.ENTITIES)], ids=["long", "entities"]
)
async def test_texts_that_are_read_in_windows_are_not_cut(
    model: str, task: Task, backend: Backend
) -> None:
    (outcome,) = await backend.ask(model, task, [LONG], truncate=False)

    assert isinstance(outcome, Done), outcome
    assert outcome.truncated_from == 0


async def test_a_text_beyond_what_is_tokenized_has_more_tokens_than_are_told(
    backend: Backend,
) -> None:
    endless = "good bad " * 100_000

    (cut,) = await backend.ask("mood", Task.CLASSIFY, [endless])
    (refused,) = await backend.ask("mood", Task.CLASSIFY, [endless], truncate=False)

    assert isinstance(cut, Done)
    assert cut.truncated_from > LIMIT
    assert isinstance(refused, Failed)
    assert "tokens or more" in refused.detail


async def test_labels_that_were_cut_are_told_of_each_time(backend: Backend) -> None:
    labels = ZeroShotParameters(labels=[LONG, "film"], hypothesis_template="about {}")

    for text in ("good", "bad"):
        (outcome,) = await backend.ask("topics", Task.ZERO_SHOT, [text], parameters=labels)

        assert isinstance(outcome, Done)
        assert outcome.truncated_from == TOKENS + 1
