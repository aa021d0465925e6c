"""Several revisions of a model: shares of the items, pinned and kept warm."""

from collections import Counter
from pathlib import Path

import pytest

from sluicegate.backends.algorithms.embedding import Rerank
from sluicegate.backends.algorithms.split import Split, WeightedAlgorithm
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import Done, Task
from testing.model_repository import DIMENSIONS, write_head, write_model, write_repository
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
TEXTS = [f"good film {number}" for number in range(200)]
ABOVE = """
from typing import Any

from sluicegate.algorithms import Ask


async def run(item: str, ask: Ask) -> dict[str, Any]:
    return await ask.answer("mood", item)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with two revisions of `mood`; those of the second tell other labels."""
    root = write_repository(tmp_path / "models")
    (root / "mood" / "1").rename(root / "mood" / "kept")
    write_head(root, "mood", ["calm", "angry"]).rename(root / "mood" / "2")
    (root / "mood" / "kept").rename(root / "mood" / "1")
    return root


def serve(models: Path, text: str) -> None:
    (models / "mood" / "serving.yaml").write_text(text)


def executor() -> DummyExecutor:
    return DummyExecutor(dimensions=DIMENSIONS, worker_threads=1)


async def chosen(backend: Backend, scope: str = "tenant") -> dict[str, str]:
    """Return which revision answered each text."""
    found = {}
    for text in TEXTS:
        answer = await backend.answer("mood", Task.CLASSIFY, text, scope=scope)
        labels = {label["label"] for label in answer["labels"]}
        found[text] = "2" if "calm" in labels else "1"
    return found


async def test_items_are_shared_by_weight_and_keep_their_revision(models: Path) -> None:
    serve(models, "revisions: {1: 80, 2: 20}\n")
    async with running_backend(models, executor()) as backend:
        first, again = await chosen(backend), await chosen(backend)
        other = await chosen(backend, scope="another")

    assert first == again
    assert 20 <= Counter(first.values())["2"] <= 60
    assert first != other


async def test_items_stay_where_a_share_grows(models: Path) -> None:
    found = []
    revision = ""
    for weight in (20, 50):
        serve(models, f"revisions: {{1: {100 - weight}, 2: {weight}}}\n")
        async with running_backend(models, executor()) as backend:
            found.append(await chosen(backend))
            revision = backend.info("mood").revision
    before, after = found

    assert all(after[text] == "2" for text, number in before.items() if number == "2")
    assert revision == read_catalogue(models).models["mood"].revision


async def test_an_older_revision_can_be_pinned(models: Path) -> None:
    serve(models, "revisions: {1: 1}\n")
    async with running_backend(models, executor()) as backend:
        assert set((await chosen(backend)).values()) == {"1"}
        assert [i.name for i in backend.engine.state().models if "@" in i.name] == []


async def test_a_revision_that_is_kept_warm_answers_by_its_own_name(models: Path) -> None:
    serve(models, "revisions: {1: 1}\npreload: [2]\n")
    async with running_backend(models, executor()) as backend:
        answer = await backend.answer("mood@2", Task.CLASSIFY, "good")

    assert {label["label"] for label in answer["labels"]} == {"calm", "angry"}


async def test_a_model_above_one_with_shares_has_no_revision_of_its_own(models: Path) -> None:
    serve(models, "revisions: {1: 80, 2: 20}\n")
    manifest = {"algorithm": "custom", "code": "own.py", "uses": ["mood"], "tasks": ["infer"]}
    folder = write_model(models, "above", {"kind": "algorithm", **manifest})
    (folder / "own.py").write_text(ABOVE)
    async with running_backend(models, executor()) as backend:
        (above,) = await backend.ask("above", Task.INFER, ["good film"])
        counted = backend.engine.state().arms
        (itself,) = await backend.ask("mood", Task.CLASSIFY, ["good film"])

    assert isinstance(above, Done)
    assert (above.arm, counted) == ("", [])
    assert itself.arm in {"1", "2"}


async def test_a_change_of_the_shares_is_another_revision(models: Path) -> None:
    serve(models, "revisions: {1: 80, 2: 20}\n")
    before = read_catalogue(models).models["mood"].revision
    serve(models, "revisions: {1: 70, 2: 30}\n")

    assert read_catalogue(models).models["mood"].revision != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("revisions: {1: 80, 7: 20}", "there is no revision `7`"),
        ("revisions: {1: 0}", "$.revisions"),
        ("revisions: {one: 1}", "$.revisions"),
        ("revision: 1", "unknown field `revision`"),
        ("revisions: [", "serving.yaml"),
    ],
)
def test_a_wrong_serving_yaml_stops_its_model_alone(models: Path, text: str, message: str) -> None:
    serve(models, text)

    catalogue = read_catalogue(models)

    assert message in catalogue.problems["mood"]
    assert set(catalogue.problems) == {"mood", "reviewer"}


def test_a_broken_revision_stops_the_split_and_is_named(models: Path) -> None:
    serve(models, "revisions: {1: 80, 2: 20}\n")
    (models / "mood" / "2" / "head.npz").unlink()

    problems = read_catalogue(models).problems

    assert "head.npz" in problems["mood@2"]
    assert problems["mood"] == "it builds on `mood@2`, which is broken"


def test_shares_are_exact_over_many_items() -> None:
    weighted = [
        WeightedAlgorithm(algorithm=Rerank(model="any"), revision=str(weight), weight=weight)
        for weight in (1, 2, 7)
    ]
    split = Split("any", weighted)

    found = Counter(split.choose("t", f"text {number}").revision for number in range(20_000))

    shares = [found[arm.revision] / 20_000 for arm in weighted]
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.01)
