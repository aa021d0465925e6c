"""A broken revision is named, and takes no healthy one away."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from sluicegate.backends.repository.last_good import FILE as LAST_SERVED
from sluicegate.wire.protocol import Done, ServingState, Task
from testing.model_repository import (
    DIMENSIONS,
    write_encoder,
    write_head,
    write_repository,
)
from testing.waiting import until
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
Break = Callable[[Path], None]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


def executor() -> DummyExecutor:
    return DummyExecutor(dimensions=DIMENSIONS, worker_threads=1)


def copy_revision(models: Path, name: str, number: int = 2) -> Path:
    """Write the next revision of a model, as it was before."""
    source, target = models / name / str(number - 1), models / name / str(number)
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*")))


def unreadable_manifest(models: Path) -> None:
    (copy_revision(models, "mood") / "model.yaml").write_text("kind: head\ntask: [oops")


def manifest_of_another_kind(models: Path) -> None:
    (copy_revision(models, "mood") / "model.yaml").write_text("[" * 5_000)


def corrupt_head(models: Path) -> None:
    (copy_revision(models, "mood") / "head.npz").write_bytes(b"PK\x03\x04 cut")


def head_of_nan(models: Path) -> None:
    weights = np.full((DIMENSIONS, 2), np.nan, dtype=np.float16)
    np.savez(copy_revision(models, "mood") / "head.npz", w0=weights, b0=np.zeros(2))


def half_copied(models: Path) -> None:
    (copy_revision(models, "mood") / "head.npz").unlink()


def empty_folder(models: Path) -> None:
    (models / "mood" / "2").mkdir()


def unknown_encoder(models: Path) -> None:
    file = copy_revision(models, "mood") / "model.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"encoder": "nothing"}))


def serving_of_no_revision(models: Path) -> None:
    (models / "mood" / "serving.yaml").write_text("revisions: {7: 1}")


def unreadable_serving(models: Path) -> None:
    (models / "mood" / "serving.yaml").write_text("revisions: [")


def edited_in_place(models: Path) -> None:
    (models / "mood" / "1" / "model.yaml").write_text("task: [oops")


def broken_share(models: Path) -> None:
    half_copied(models)
    (models / "mood" / "serving.yaml").write_text("revisions: {1: 90, 2: 10}")


BREAKS = [
    unreadable_manifest,
    manifest_of_another_kind,
    corrupt_head,
    head_of_nan,
    half_copied,
    empty_folder,
    unknown_encoder,
    serving_of_no_revision,
    unreadable_serving,
    broken_share,
]


async def reloaded(backend: Backend) -> ServingState:
    exchange = await backend.reload()
    assert exchange.status == 200, exchange.body
    return msgspec.msgpack.decode(exchange.body, type=ServingState)


@pytest.mark.parametrize("damage", [*BREAKS, edited_in_place])
async def test_a_reload_that_finds_a_broken_revision_leaves_the_last_good_one(
    models: Path, damage: Break
) -> None:
    """Its revision answers on, calls that name it too; the reason is in the answer."""
    async with running_backend(models, executor()) as backend:
        before = backend.info("mood").revision
        call = backend.call("mood", Task.CLASSIFY, ["good"])
        damage(models)

        state = await reloaded(backend)

        assert state.ready
        assert {model.name: model.revision for model in state.models}["mood"] == before
        assert set(state.problems) >= {"mood"}
        assert any(line.startswith("mood: ") for line in state.missing)
        (outcome, _) = (await backend.exchange(call).run()).frames
        assert isinstance(outcome, Done)
        await backend.answer("reviewer", Task.INFER, "good")
        await backend.answer("intents", Task.CLASSIFY, "good")


@pytest.mark.parametrize("damage", BREAKS)
async def test_a_start_with_a_broken_revision_serves_the_last_good_one(
    models: Path, damage: Break
) -> None:
    """Nothing was served before in this repository: the next older revision that loads is."""
    async with running_backend(models, executor()) as backend:
        before = backend.info("mood").revision
    (models / "mood" / LAST_SERVED).unlink()
    damage(models)

    async with running_backend(models, executor()) as backend:
        state = backend.engine.state()

        assert state.ready
        assert backend.info("mood").revision == before
        assert set(state.problems) >= {"mood"}
        await backend.answer("mood", Task.CLASSIFY, "good")
        await backend.answer("reviewer", Task.INFER, "good")


@pytest.mark.parametrize("damage", [unreadable_serving, serving_of_no_revision])
async def test_a_start_serves_what_was_served_last_and_not_what_is_newest(
    models: Path, damage: Break
) -> None:
    """The owner had pinned revision 1 beside a newer one: a broken file does not serve that."""
    newest = write_head(models, "mood", ["negative", "positive", "mixed"])
    newest.rename(models / "mood" / "2")
    write_head(models, "mood", ["negative", "positive"])
    (models / "mood" / "serving.yaml").write_text("revisions: {1: 1}")
    async with running_backend(models, executor()) as backend:
        before = backend.info("mood").revision
    damage(models)

    async with running_backend(models, executor()) as backend:
        assert backend.info("mood").revision == before
        assert backend.engine.state().problems.keys() == {"mood"}


async def test_a_broken_serving_yaml_takes_no_revision_away_that_callers_may_name(
    models: Path,
) -> None:
    """The revisions that share, and those that were only kept warm, answer by their names."""
    for number in (2, 3):
        copy_revision(models, "mood", number)
    serving = models / "mood" / "serving.yaml"
    serving.write_text("{revisions: {1: 50, 2: 50}, preload: [3]}")
    async with running_backend(models, executor()) as backend:
        serving.write_text("revisions: [")

        state = await reloaded(backend)

        assert "revisions `1` and `2`" in state.problems["mood"]
        assert {"mood@1", "mood@2", "mood@3"} <= {model.name for model in state.models}
        await backend.answer("mood@3", Task.CLASSIFY, "good")

        serving.write_text("revisions: {1: 1}")
        state = await reloaded(backend)

        assert {model.name for model in state.models}.isdisjoint({"mood@1", "mood@2", "mood@3"})


async def test_an_encoder_that_is_broken_takes_no_head_with_it(models: Path) -> None:
    """A head's own new revision waits for nothing: it runs on the encoder that is good."""
    async with running_backend(models, executor()) as backend:
        encoder = backend.info("tiny").revision
        copy_revision(models, "tiny")
        (models / "tiny" / "2" / "tokenizer.json").write_text("{")
        write_head(models, "intents", ["card", "other"]).rename(models / "intents" / "2")
        write_head(models, "intents", ["card", "money", "other"])

        state = await reloaded(backend)

        assert state.problems.keys() == {"tiny"}
        assert backend.info("tiny").revision == encoder
        assert backend.info("intents").labels == ["card", "other"]
        await backend.answer("mood", Task.CLASSIFY, "good")


async def test_what_was_kept_is_kept_over_the_next_reload_and_goes_when_it_is_mended(
    models: Path,
) -> None:
    """Two reloads while it is broken change nothing; the one after it is mended does."""
    async with running_backend(models, executor(), retire_after=0.0) as backend:
        before = backend.info("mood").revision
        edited_in_place(models)
        await reloaded(backend)
        write_encoder(models, description="another")

        second = await reloaded(backend)
        answer = await backend.answer("mood", Task.CLASSIFY, "good")
        write_head(models, "mood", ["negative", "positive", "mixed"])
        third = await reloaded(backend)

        assert second.problems.keys() == {"mood", "reviewer"}
        assert {m.name: m.revision for m in second.models}["mood"] == before
        assert len(answer["labels"]) == 2
        assert third.problems == {}
        assert len((await backend.answer("mood", Task.CLASSIFY, "good"))["labels"]) == 3
        # The encoder of before, which only the kept head used, is let go.
        await until(lambda: len(backend.engine.running()) == 1)


async def test_a_model_that_is_broken_from_its_first_day_is_named_and_not_served(
    models: Path,
) -> None:
    """There is no good revision to fall back to; everything else is taken up."""
    async with running_backend(models, executor()) as backend:
        (models / "new" / "1").mkdir(parents=True)
        write_head(models, "newer", ["yes", "no"])

        state = await reloaded(backend)

        assert state.problems.keys() == {"new"}
        assert "newer" in {model.name for model in state.models}


async def test_real_graphs_that_are_cut_or_make_no_numbers_are_not_taken_up(tmp_path: Path) -> None:
    """A graph that ONNX Runtime refuses, and one whose weights are NaN."""
    models = tmp_path / "models"
    write_encoder(models, real=True)
    async with running_backend(models) as backend:
        before = backend.info("tiny").revision
        graph = copy_revision(models, "tiny") / "model.onnx"
        whole = graph.read_bytes()
        graph.write_bytes(whole[: len(whole) // 2])
        cut = await reloaded(backend)
        graph.write_bytes(not_a_number(whole))
        nan = await reloaded(backend)

        assert cut.problems.keys() == nan.problems.keys() == {"tiny"}
        assert "NaN" in nan.problems["tiny"]
        assert backend.info("tiny").revision == before
        await backend.answer("tiny", Task.EMBED, "good")


def not_a_number(graph: bytes) -> bytes:
    """Return a graph whose largest weights are all NaN."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(graph)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = np.full(len(largest.raw_data) // 4, np.nan, dtype=np.float32)
    largest.raw_data = values.tobytes()
    return bytes(model.SerializeToString())


async def test_strangers_are_told_whether_and_who_has_the_token_is_told_why(models: Path) -> None:
    """Readiness names no backend, model, path or file, unless the token comes with the call."""
    unreadable_manifest(models)
    async with running_backend(models, executor(), token="secret") as backend:
        stranger = await backend.get("/health/ready")
        gateway = await backend.get("/health/ready", {"x-sluicegate-token": "secret"})

    assert stranger.status == gateway.status == 200
    assert json.loads(stranger.body) == {"ready": True}
    assert str(models) in gateway.body.decode()
