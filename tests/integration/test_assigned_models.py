"""A backend with the whole repository at hand serves what it is assigned, and nothing else."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.plans import ASSIGNMENT_PATH, Assignment
from sluicegate.wire.protocol import ServingState, Task
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import until
from tests.support.backend_calls import AsgiExchange, Backend, running_backend
from tests.support.executors import DummyExecutor
from tests.support.model_sync import push, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


def executor() -> DummyExecutor:
    return DummyExecutor(dimensions=DIMENSIONS, worker_threads=1)


def served(backend: Backend) -> set[str]:
    return {info.name for info in backend.engine.state().models}


async def assign(
    backend: Backend, version: int, *models: str, until: tuple[str, ...] = ()
) -> ServingState:
    assignment = Assignment(version=version, models=models, until=until)
    body = msgspec.msgpack.encode(assignment)
    exchange = await AsgiExchange(backend.routes, "POST", ASSIGNMENT_PATH, body).run()
    assert exchange.status == 200, exchange.body
    return msgspec.msgpack.decode(exchange.body, type=ServingState)


def test_only_what_is_assigned_is_read_and_what_that_builds_on(models: Path) -> None:
    (models / "names/1/model.yaml").write_text("{")

    catalogue = read_catalogue(models, assigned=["topic*", "intents"])

    assert set(catalogue.models) == {"intents", "topics", "tiny"}
    assert catalogue.problems == {}


async def test_a_backend_serves_the_models_of_its_label(models: Path) -> None:
    async with running_backend(models, executor(), serves="mood, names", retire_after=0.0) as one:
        call = one.call("mood", Task.CLASSIFY, ["good"])
        below = msgspec.structs.replace(call, model="tiny", task=Task.EMBED)

        assert served(one) == {"mood", "names"}
        await one.answer("mood", Task.CLASSIFY, "good")
        # The encoder is there for the heads alone.
        assert (await one.exchange(below).run()).status == 404
        assert len(one.batchers) == 1


async def test_an_assignment_is_taken_up_while_calls_are_answered(models: Path) -> None:
    async with running_backend(models, executor(), serves="mood", retire_after=60.0) as backend:
        former = backend.call("mood", Task.CLASSIFY, ["good"])
        state = await assign(backend, 5, "intents", "topic*")
        await until(lambda: served(backend) == {"intents", "topics"})

        assert state.assignment.models == ("intents", "topic*")
        await backend.answer("intents", Task.CLASSIFY, "good")
        # Callers that do not know of it yet are answered.
        assert (await backend.exchange(former).run()).status == 200
        await backend.reload()
        assert served(backend) == {"intents", "topics"}


async def test_a_model_that_was_taken_away_is_let_go(models: Path) -> None:
    async with running_backend(models, executor(), retire_after=0.0) as backend:
        former = backend.call("tiny", Task.EMBED, ["good"])
        await assign(backend, 1, "-")
        await until(lambda: not backend.engine.revisions())

        assert backend.engine.state().ready
        assert served(backend) == set()
        assert (await backend.exchange(former).run()).status == 404


async def test_older_assignments_and_those_that_add_change_nothing(models: Path) -> None:
    async with running_backend(models, executor(), serves="-") as backend:
        await assign(backend, 5, "mood", until=("names", "intents"))
        for version, names, kept in (
            (4, ("tiny",), ()),
            (5, ("tiny",), ()),
            (5, ("mood",), ("names", "intents", "topics")),
        ):
            await assign(backend, version, *names, until=kept)
        given = await assign(backend, 5, "mood", until=("names",))
        await until(lambda: served(backend) == {"mood", "names"})

        assert given.assignment == Assignment(version=5, models=("mood",), until=("names",))
        # A document that assigns nothing leaves it to the backend's own setting.
        await assign(backend, 6)
        await until(lambda: served(backend) == set())


async def test_a_model_that_is_assigned_and_not_there_is_a_problem(models: Path) -> None:
    async with running_backend(models, executor(), serves="mood,absent,none-*") as backend:
        state = backend.engine.state()

        assert state.ready
        assert list(state.problems) == ["absent"]
        assert "is not in the repository" in state.problems["absent"]


async def test_what_a_sync_puts_in_place_is_served(models: Path, tmp_path: Path) -> None:
    source, copy = f"file://{tmp_path}/layout", tmp_path / "copy"
    (models / "mood").rename(tmp_path / "mood")
    push(models, source)
    run("sync", source, copy)

    async with running_backend(copy, executor()) as backend:
        before = served(backend)
        (tmp_path / "mood").rename(models / "mood")
        push(models, source)
        result = await asyncio.to_thread(run, "sync", source, copy)
        await until(lambda: "mood" in served(backend))

        assert "mood" not in before
        assert "mood/1: in place" in result.output
        await backend.answer("mood", Task.CLASSIFY, "good")


async def test_a_sync_that_could_not_be_taken_up_is_tried_again_later(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, copy, more = f"file://{tmp_path}/layout", tmp_path / "copy", tmp_path / "more"
    more.mkdir()
    (models / "mood").rename(tmp_path / "mood")
    push(models, source)
    run("sync", source, copy)

    async with running_backend(copy, executor(), more_models=more) as backend:
        more.rename(tmp_path / "away")
        (tmp_path / "mood").rename(models / "mood")
        push(models, source)
        await asyncio.to_thread(run, "sync", source, copy)
        await until(lambda: "a check of the repository" in caplog.text)
        # Nothing is tried yet.
        await backend.repository.take_up_changes()
        (tmp_path / "away").rename(more)
        backend.repository.retry_interval = 0.0
        await backend.repository.take_up_changes()

        assert "mood" in served(backend)


async def test_an_assignment_that_could_not_be_taken_up_is_tried_again_later(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_backend(models, executor(), serves="-") as backend:
        (tmp_path / "models").rename(tmp_path / "away")
        await assign(backend, 5, "mood")
        await until(lambda: "a check of the repository" in caplog.text)
        await backend.repository.take_up_changes()
        (tmp_path / "away").rename(models)
        # Another one is tried at once.
        await assign(backend, 6, "names")
        await until(lambda: served(backend) == {"names"})


async def test_a_backend_without_models_is_not_ready_while_its_first_ones_load(
    models: Path,
) -> None:
    async with running_backend(models, executor(), serves="-") as backend:
        before = backend.engine.state()
        # What is assigned is not taken up before this task pauses.
        backend.repository.assign(Assignment(version=5, models=("mood",)))
        meanwhile = backend.engine.state()
        await until(lambda: served(backend) == {"mood"})
        backend.repository.assign(Assignment(version=6, models=("names",)))

        assert before.ready
        assert (meanwhile.ready, meanwhile.missing) == (False, ["models are loading"])
        # One that serves some is in use while others load.
        assert backend.engine.state().ready
