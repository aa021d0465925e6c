"""Every algorithm that a `model.yaml` may name: served, or refused with what is wrong."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.backends.algorithms.recipes import RECIPES
from sluicegate.backends.algorithms.registry import describe
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import EmbedParameters, RerankParameters, Task, ZeroShotParameters
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
TREE = {"film": ["good", "bad"], "money": ["card", {"paris": ["text"]}]}
# Of each algorithm: the models it uses, its task, its options.
SERVED: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "zero-shot-embedding": (["tiny"], "zero-shot", {}),
    "zero-shot-entailment": (["nli"], "zero-shot", {}),
    "multiple-choice": (["nli"], "choose", {}),
    "cross-encoder": (["nli"], "rerank", {}),
    "long-document": (["mood"], "classify", {"combine": "mean", "overlap": 4}),
    "cascade": (["mood-2", "mood"], "classify", {"threshold": 0.6}),
    "ensemble": (["mood", "mood-2"], "classify", {"combine": "weighted", "weights": [1, 3]}),
    "label-tree": (["topics"], "classify", {"tree": TREE, "beam": 2}),
    "tournament": (["mood"], "infer", {"better": "positive"}),
    "reviewer": (["mood", "topics", "intents"], "infer", {}),
    "guard": (["mood", "names"], "guard", {}),
}


def write_algorithm(models: Path, name: str, **changes: Any) -> None:
    uses, task, options = SERVED[changes.get("algorithm", name)]
    manifest = {
        "kind": "algorithm",
        "algorithm": name,
        "uses": uses,
        "tasks": [task],
        "options": options,
    }
    write_model(models, f"a-{name}", manifest | changes)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = write_repository(tmp_path / "models")
    write_encoder(root, "small", max_tokens=16)
    write_head(root, "mood-2", ["positive", "negative"], encoder="small")
    write_head(root, "nli", ["contradiction", "neutral", "entailment"])
    for name in SERVED:
        write_algorithm(root, name)
    write_model(
        root,
        "long-vectors",
        {
            "kind": "algorithm",
            "algorithm": "long-document",
            "uses": ["tiny"],
            "tasks": ["embed"],
            "options": {"overlap": 0},
        },
    )
    write_model(
        root,
        "tower",
        {
            "kind": "algorithm",
            "algorithm": "ensemble",
            "uses": ["a-cascade", "a-ensemble"],
            "tasks": ["classify"],
        },
    )
    return root


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


def test_every_algorithm_is_tried_here() -> None:
    assert set(SERVED) == set(RECIPES) - {"custom"}


def test_all_of_them_are_described_with_their_labels(models: Path) -> None:
    infos, problems = describe(read_catalogue(models))

    assert problems == {}
    found = {info.name: info for info in infos}
    assert found["a-cascade"].labels == ["negative", "positive"]
    assert found["a-label-tree"].labels == ["good", "bad", "card", "text"]
    assert found["long-vectors"].dimensions == DIMENSIONS
    assert found["tower"].algorithm_version > found["a-cascade"].algorithm_version


@pytest.mark.parametrize(
    "name",
    [*(f"a-{name}" for name, (_, task, _) in SERVED.items() if task == "classify"), "tower"],
)
async def test_labels_are_answered_best_first(backend: Backend, name: str) -> None:
    answer = await backend.answer(name, Task.CLASSIFY, "the good film about money")

    scores = [label["score"] for label in answer["labels"]]
    assert scores == sorted(scores, reverse=True)
    assert 0.0 < sum(scores) <= 1.00001


async def test_pairs_and_zero_shot_are_answered(backend: Backend) -> None:
    labels = ZeroShotParameters(labels=["film", "card"])
    query = RerankParameters(query="the card")

    for model in ("a-zero-shot-embedding", "a-zero-shot-entailment"):
        answer = await backend.answer(model, Task.ZERO_SHOT, "a film", parameters=labels)
        assert {label["label"] for label in answer["labels"]} == {"film", "card"}
    choice = {"prompt": "a film", "choices": ["good", "bad"]}
    assert (await backend.answer("a-multiple-choice", Task.CHOOSE, choice))["choice"] in (0, 1)
    found = await backend.answer("a-cross-encoder", Task.RERANK, "a film", parameters=query)
    assert 0.0 <= found["score"] <= 1.0


async def test_a_tournament_ranks_all_documents(backend: Backend) -> None:
    item = {"documents": ["good", "bad film", "money", "card"]}

    answer = await backend.answer("a-tournament", Task.INFER, item)

    assert {entry["index"] for entry in answer["ranking"]} == {0, 1, 2, 3}
    assert answer["comparisons"] <= 6


async def test_a_text_that_fits_one_window_is_answered_as_without_windows(backend: Backend) -> None:
    text = "the good film"

    windowed = await backend.answer("a-long-document", Task.CLASSIFY, text)
    vector = await backend.answer("long-vectors", Task.EMBED, text)

    assert windowed == await backend.answer("mood", Task.CLASSIFY, text)
    assert vector == await backend.answer("tiny", Task.EMBED, text)


async def test_a_long_text_is_the_mean_of_its_windows(backend: Backend) -> None:
    """Two windows of 30 tokens each, between the two special ones."""
    first, second = "good " * 30, "card " * 30
    raw = EmbedParameters(normalize=False)

    parts = [
        (await backend.answer("tiny", Task.EMBED, text, parameters=raw))["embedding"]
        for text in (first, second)
    ]
    whole = await backend.answer("long-vectors", Task.EMBED, first + second, parameters=raw)

    mean = [(one + other) / 2 for one, other in zip(*parts, strict=True)]
    assert whole["embedding"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("cascade", {"options": {}}, "either `threshold` or `unsure`"),
        ("cascade", {"options": {"unsure": {"sad": [0.1, 0.9]}}}, "no label `sad`"),
        ("cascade", {"options": {"unsure": {"negative": [0.9, 0.1]}}}, "is the lower one"),
        ("cascade", {"options": {"threshold": 2}}, "<= 1.0"),
        ("cascade", {"options": {"threshold": 0.5, "treshold": 1}}, "unknown field `treshold`"),
        ("cascade", {"uses": ["mood"]}, "the small one, then the large one"),
        ("cascade", {"uses": ["mood", "intents"]}, "models with the same labels"),
        ("cascade", {"uses": ["mood", "topics"]}, "models that classify"),
        ("ensemble", {"options": {"combine": "median"}}, "Invalid enum value 'median'"),
        ("ensemble", {"options": {"combine": "weighted"}}, "needs `weights`"),
        ("ensemble", {"options": {"weights": [1, 2]}}, "only where `combine`"),
        ("ensemble", {"options": {"combine": "vote", "weights": [1]}}, "1 `weights` for the 2"),
        ("ensemble", {"options": {"combine": "vote", "weights": [0, 1]}}, "> 0.0"),
        ("label-tree", {"options": {"tree": {"a": []}}}, "needs a `tree`"),
        ("label-tree", {"options": {"tree": TREE, "beam": 0}}, ">= 1"),
        ("label-tree", {"options": {"tree": TREE, "template": "x"}}, "needs a `template`"),
        ("label-tree", {"uses": ["mood"]}, "one that answers `zero-shot`"),
        ("long-document", {"options": {"overlap": 17}}, "more than half"),
        ("long-document", {"uses": ["topics"]}, "cannot answer `classify`"),
        ("long-document", {"uses": ["a-cascade"]}, "not itself a `long-document`"),
        ("long-document", {"tasks": ["embed"]}, "cannot answer `embed`"),
        ("tournament", {"options": {"better": "best"}}, "the label `better`"),
        ("zero-shot-entailment", {"uses": ["mood"]}, "begins with `entail`"),
        ("zero-shot-entailment", {"options": {"a": 1}}, "unknown field `a`"),
        ("zero-shot-embedding", {"uses": ["mood"]}, "needs one `encoder`"),
        ("multiple-choice", {"uses": ["topics"]}, "a classifier"),
        ("reviewer", {"uses": ["mood", "topics"]}, "in this order"),
    ],
)
def test_what_does_not_fit_is_named_and_stops_that_model_alone(
    models: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    write_algorithm(models, name, **changes)

    infos, problems = describe(read_catalogue(models))

    assert said in problems[f"a-{name}"]
    assert set(problems) <= {f"a-{name}", "tower"}
    assert "mood" in {info.name for info in infos}


def test_what_builds_on_a_model_whose_revisions_share_is_told_to_name_one(models: Path) -> None:
    """It would be named as no encoder, or as one that does not classify."""
    for name in ("mood", "tiny"):
        shutil.copytree(models / name / "1", models / name / "2")
    (models / "mood" / "serving.yaml").write_text("revisions: {1: 90, 2: 10}")
    write_algorithm(models, "cascade", uses=["mood-2", "mood"])
    write_algorithm(models, "ensemble", uses=["mood-2", "mood@2"])

    _, problems = describe(read_catalogue(models))

    said = "it cannot build on `mood`"
    assert said in problems["a-cascade"]
    assert "a-ensemble" not in problems

    (models / "tiny" / "serving.yaml").write_text("revisions: {1: 90, 2: 10}")

    _, problems = describe(read_catalogue(models))

    assert "cannot build on `tiny`" in problems["intents"]
