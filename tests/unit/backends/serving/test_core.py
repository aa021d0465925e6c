"""Which calls are answered while models come and go."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.errors import ModelNotFound
from sluicegate.backends.serving.core import ModelSet
from sluicegate.wire.protocol import Task
from testing.model_repository import DIMENSIONS, write_repository
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    executor = DummyExecutor(dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor) as running:
        yield running


def without(models: ModelSet, *names: str) -> ModelSet:
    left = {name: model for name, model in models.served_models.items() if name not in names}
    return msgspec.structs.replace(models, served_models=left)


async def test_a_model_that_is_retired_again_outlives_its_first_end(backend: Backend) -> None:
    core, models = backend.engine, backend.engine.model_set
    call = backend.call("mood", Task.CLASSIFY, ["good"])
    first = core.replace(without(models, "mood"))
    core.replace(models)
    second = core.replace(without(models, "mood"))

    core.forget(first)
    core.admit(call)
    core.forget(second)

    with pytest.raises(ModelNotFound):
        core.admit(call)


async def test_models_that_are_retired_one_by_one_still_answer(backend: Backend) -> None:
    core, models = backend.engine, backend.engine.model_set
    calls = [backend.call(name, Task.CLASSIFY, ["good"]) for name in ("mood", "intents")]

    core.replace(without(models, "mood"))
    core.replace(without(models, "mood", "intents"))

    assert [core.admit(call)[0].served_model.info.name for call in calls] == ["mood", "intents"]


async def test_a_model_that_was_loaded_anew_answers_with_what_was_loaded(backend: Backend) -> None:
    core, call = backend.engine, backend.call("mood", Task.CLASSIFY, ["good"])
    core.admit(call)
    anew = msgspec.structs.replace(core.model_set)

    core.replace(anew)

    entry, _ = core.admit(call)
    assert entry.model_set is anew
