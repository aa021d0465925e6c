"""A backend bounds by itself what items expand to, whatever gateway sends them."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.backends.serving.item_memory import item_bytes
from sluicegate.wire.protocol import (
    ChooseItem,
    Done,
    EntitiesParameters,
    Failed,
    Task,
    TokenizeParameters,
    ZeroShotParameters,
)
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import until
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
MB = 1_000_000
LABELS = [f"label {number}" for number in range(256)]
LARGE = ZeroShotParameters(labels=LABELS, hypothesis_template="{} good" + " " * 60)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    executor = DummyExecutor(dimensions=DIMENSIONS, worker_threads=2)
    async with running_backend(write_repository(tmp_path / "models"), executor) as running:
        yield running


async def test_a_template_that_expands_beyond_the_budget_is_refused_uncopied(
    backend: Backend,
) -> None:
    parameters = ZeroShotParameters(labels=LABELS, hypothesis_template="{}x" + " " * 6 * MB)

    tracemalloc.start()
    (outcome,) = await backend.ask("topics", Task.ZERO_SHOT, ["good"], parameters=parameters)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code) == (422, "input_too_long")
    assert "238,609,294" in outcome.detail
    assert peak < 64 * MB


async def test_a_large_item_waits_for_memory_of_others(backend: Backend) -> None:
    memory = backend.engine.memory
    held = [memory.limit_bytes * 8 // 9, memory.limit_bytes * 8 // 81]
    for number, size in enumerate(held):
        assert memory.try_hold(number, size)
    rest = memory.limit_bytes - memory.used_bytes
    assert memory.try_hold("third", rest * 8 // 9)

    small = await backend.answer(
        "topics", Task.ZERO_SHOT, "good", parameters=ZeroShotParameters(labels=["film"])
    )
    waiting = asyncio.create_task(backend.ask("topics", Task.ZERO_SHOT, ["good"], parameters=LARGE))
    await until(lambda: memory.waits == 1)
    memory.release(0, held[0])
    (outcome,) = await waiting

    assert small["labels"][0]["label"] == "film"
    assert isinstance(outcome, Done), outcome
    assert memory.used_bytes == held[1] + rest * 8 // 9


async def test_all_large_items_of_a_call_are_answered_one_after_the_other(tmp_path: Path) -> None:
    executor = DummyExecutor(dimensions=DIMENSIONS, worker_threads=2)
    models = write_repository(tmp_path / "models")
    async with running_backend(models, executor, expanded_bytes=600_000) as backend:
        outcomes = await backend.ask("topics", Task.ZERO_SHOT, ["good"] * 40, parameters=LARGE)

        assert all(isinstance(outcome, Done) for outcome in outcomes)
        assert backend.engine.memory.used_bytes == 0


def test_what_an_item_takes_is_known_from_its_parts() -> None:
    few = ZeroShotParameters(labels=["film", "food"])
    options = ChooseItem(prompt="p" * 5_000, choices=["x"] * 200)
    counts = TokenizeParameters(counts_only=True)
    many = EntitiesParameters(labels=[f"label {number}" for number in range(60)])

    def of(task: Task, item: object, parameters: object, length: int) -> int:
        return item_bytes(task, item, parameters, length=length, max_tokens=512)

    assert of(Task.ZERO_SHOT, "t" * 5_000, few, 5_000) == 0
    assert of(Task.ZERO_SHOT, "t" * 5_000, LARGE, 5_000) > 16 * 256 * 512
    assert of(Task.CHOOSE, options, None, 5_400) > 16 * 200 * 512
    assert of(Task.ENTITIES, "t" * 10, many, 10) > 12 * 64 * 4 * 480
    assert of(Task.ENTITIES, "t" * MB, many, MB) == 960 * MB + 12 * 64 * 4 * 8 * 512
    assert of(Task.TOKENIZE, "t" * MB, TokenizeParameters(), MB) == 768 * MB
    assert of(Task.TOKENIZE, "t" * MB, counts, MB) == 448 * MB
    assert of(Task.EMBED, "t" * MB, None, MB) == 0
