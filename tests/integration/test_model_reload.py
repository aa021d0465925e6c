"""The models of a running backend follow their repository; nothing that runs is disturbed."""

import asyncio
import shutil
from pathlib import Path

import pytest

from sluicegate.wire.protocol import Done, Task
from testing.model_repository import (
    DIMENSIONS,
    write_encoder,
    write_head,
    write_repository,
)
from testing.waiting import until
from tests.support.backend_calls import running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


def executor() -> DummyExecutor:
    return DummyExecutor(dimensions=DIMENSIONS, worker_threads=1)


def add_mood(models: Path) -> None:
    """Write a second revision of the head `mood`."""
    kept = models / "mood" / "kept"
    (models / "mood" / "1").rename(kept)
    write_head(models, "mood", ["negative", "positive", "mixed"]).rename(models / "mood" / "2")
    kept.rename(models / "mood" / "1")


async def test_a_new_revision_answers_and_the_old_one_answers_who_names_it(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        old, variant = backend.call("mood", Task.CLASSIFY, ["good"]), backend.info("mood").variant
        add_mood(models)

        reloaded = await backend.reload()
        answer = await backend.answer("mood", Task.CLASSIFY, "good")
        by_old = await backend.exchange(old).run()

        assert reloaded.status == 200
        assert {label["label"] for label in answer["labels"]} == {"negative", "positive", "mixed"}
        (outcome, _) = by_old.frames
        assert isinstance(outcome, Done)
        assert b"mixed" not in outcome.result
        assert backend.info("mood").replaced == (variant,)


async def test_an_encoder_that_did_not_change_runs_on_with_its_rows(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        batchers = backend.batchers
        await backend.answer("mood", Task.CLASSIFY, "good")
        add_mood(models)

        await backend.reload()
        (outcome,) = await backend.ask("mood", Task.CLASSIFY, ["good"])

        assert backend.batchers == batchers
        assert isinstance(outcome, Done)
        assert outcome.rows == 0


async def test_what_was_replaced_is_let_go_after_a_while(models: Path) -> None:
    async with running_backend(models, executor(), retire_after=0.0) as backend:
        old = backend.call("tiny", Task.EMBED, ["good"])
        (before,) = backend.batchers
        write_encoder(models, description="another")

        await backend.reload()
        await until(lambda: backend.info("tiny").replaced == ())

        assert (await backend.exchange(old).run()).status == 409
        assert backend.batchers != [before]


async def test_a_model_that_comes_and_goes(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        shutil.move(models / "mood", models.parent / "mood")
        await backend.reload()
        without = {info.name for info in backend.engine.state().models}
        shutil.move(models.parent / "mood", models / "mood")
        await backend.reload()

        assert "mood" not in without
        # What builds on it is broken, not gone: it answers as before.
        assert "reviewer" in without
        assert backend.info("mood").replaced == ()
        await backend.answer("mood", Task.CLASSIFY, "good")


async def test_a_directory_that_is_gone_leaves_everything_as_it_was(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        shutil.move(models, models.parent / "elsewhere")

        refused = await backend.reload()

        assert refused.status == 503
        await backend.answer("mood", Task.CLASSIFY, "good")


async def test_who_asks_during_a_reload_gets_one_that_began_later(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        first = asyncio.create_task(backend.reload())
        await asyncio.wait({first}, timeout=0)  # it begins
        add_mood(models)

        await asyncio.gather(first, *(backend.reload() for _ in range(5)))

        answer = await backend.answer("mood", Task.CLASSIFY, "good")
        assert len(answer["labels"]) == 3


async def test_a_reload_needs_the_token(models: Path) -> None:
    async with running_backend(models, executor(), token="secret") as backend:
        assert (await backend.reload()).status == 401
