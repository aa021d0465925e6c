"""The demo models are served by a backend on a GPU, whose executor runs on the CPU here.

Still to be seen on a device: that the packed graph runs, and which graph is quickest.
"""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typing_extensions import override

from sluicegate.backends.app import make_routes, open_backend
from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import ModelFailed
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cuda import CudaExecutor, RunLimits
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.provider import DeviceOptions
from sluicegate.backends.model_tools.graphs.grids import WIDTHS
from sluicegate.backends.qualification.device_graphs import DEVICE_GRAPH_FILES
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import Task
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio

# Full batches of a real device would take most of the time.
BATCH = BatchBounds(rows=8, tokens=512)
ON_CPU, LIMITS = DeviceOptions(provider="cpu"), RunLimits(batch=BATCH)
TEXTS = ["good", "A long and winding film, full of talk about nothing at all.", "It was awful."]


class Opened:
    """Opens graphs as on CUDA, and notes their files."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, source: GraphSource) -> ModelExecutor:
        self.files.add(source.path.name)
        return CudaExecutor(source, options=ON_CPU, limits=LIMITS)


class Failing(CudaExecutor):
    """Runs a graph as a device does that has no kernel for attention of zero rows."""

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        if len(batch.mask) > 1 and batch.mask.sum(axis=1).max() <= WIDTHS[-1]:
            raise ModelFailed("attention of zero rows")
        return super().run(batch)


@pytest.fixture
def models(light_models: Path, tmp_path: Path) -> Path:
    """A copy, beside whose graphs records may be written."""
    return shutil.copytree(light_models, tmp_path / "models")


@asynccontextmanager
async def on_gpu(
    models: Path, open_executor: Callable[[GraphSource], ModelExecutor]
) -> AsyncIterator[Backend]:
    settings = BackendSettings(
        models=models,
        region="eu",
        backend_id="eu-0",
        provider="cuda",
        max_batch_tokens=BATCH.tokens,
        max_batch_rows=BATCH.rows,
        gpu_fp16=False,
    )
    async with open_backend(settings, tracing=NO_TRACING, open_executor=open_executor) as found:
        yield Backend(make_routes(found, settings, NO_TRACING), found)


async def scores(backend: Backend) -> list[float]:
    answers = [await backend.answer("sentiment", Task.CLASSIFY, text) for text in TEXTS]
    return [
        label["score"]
        for answer in answers
        for label in sorted(answer["labels"], key=lambda label: str(label["label"]))
    ]


async def test_the_demo_tries_its_graphs_and_answers_as_on_a_cpu(
    light_models: Path, models: Path
) -> None:
    opened = Opened()

    async with running_backend(light_models, threads=1) as backend:
        expected = await scores(backend)
    async with on_gpu(models, opened) as backend:
        found = await scores(backend)

    assert found == pytest.approx(expected, abs=1e-4)
    assert {"model.cuda-heads.onnx", "model.cuda-packed.onnx"} <= opened.files


def without_device_graphs(models: Path) -> None:
    for graph in models.glob(f"*/1/{DEVICE_GRAPH_FILES}"):
        graph.unlink()


async def test_without_graphs_the_start_says_so_in_a_line_and_the_graph_answers(
    light_models: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_device_graphs(models)

    async with running_backend(light_models, threads=1) as backend:
        expected = await scores(backend)
    async with on_gpu(models, Opened()) as backend:
        found = await scores(backend)

    assert found == pytest.approx(expected, abs=1e-4)
    told = [record for record in caplog.records if "no graph for this device" in record.message]
    assert [record.__dict__["provider"] for record in told] == ["cuda"]


async def test_without_graphs_a_graph_that_fails_there_is_not_served(models: Path) -> None:
    without_device_graphs(models)

    def open_failing(source: GraphSource) -> ModelExecutor:
        return Failing(source, options=ON_CPU, limits=LIMITS)

    async with on_gpu(models, open_failing) as backend:
        problems = backend.engine.model_set.problems

    assert "attention of zero rows" in problems["minilm"]
    assert "models import" in problems["minilm"]
