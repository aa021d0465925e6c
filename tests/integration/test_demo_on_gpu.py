"""The demo models are served by a backend on a GPU, whose executor runs on the CPU here.

Still to be seen on a device: that the packed form runs, and which form is quickest.
"""

import shutil
from pathlib import Path

import pytest

from backends.app import make_routes, open_backend
from backends.executors.base import ModelExecutor
from backends.executors.cuda import CudaExecutor
from backends.executors.graph import GraphSource
from backends.executors.provider import DeviceOptions
from backends.protocol import Task
from backends.qualification.forms import RECORD
from backends.settings import BackendSettings
from backends.telemetry.spans import NO_TRACING
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio

TEXTS = ["good", "A long and winding film, full of talk about nothing at all.", "It was awful."]


class Opened:
    """Opens graphs as on CUDA, and notes their files."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, source: GraphSource) -> ModelExecutor:
        self.files.add(source.path.name)
        return CudaExecutor(source, options=DeviceOptions(provider="cpu"))


async def scores(backend: Backend) -> list[float]:
    answers = [await backend.answer("sentiment", Task.CLASSIFY, text) for text in TEXTS]
    return [
        label["score"]
        for answer in answers
        for label in sorted(answer["labels"], key=lambda label: str(label["label"]))
    ]


async def test_the_demo_on_a_gpu_tries_its_forms_and_answers_as_on_a_cpu(
    light_models: Path, tmp_path: Path
) -> None:
    models = shutil.copytree(light_models, tmp_path / "models")
    settings = BackendSettings(
        models=models, region="eu", backend_id="eu-0", provider="cuda", max_batch_tokens=4096
    )
    opened = Opened()

    async with running_backend(light_models, threads=1) as backend:
        expected = await scores(backend)
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opened) as repository:
        found = await scores(Backend(make_routes(repository, settings, NO_TRACING), repository))

    assert found == pytest.approx(expected, abs=1e-4)
    assert {"model.cuda-heads.onnx", "model.cuda-packed.onnx"} <= opened.files
    assert (models / "minilm" / "1" / RECORD).is_file()
