"""A model in fp32 runs in fp16 on a GPU where its answers stay, and says so.

There is no such device here: graphs are opened on the CPU, which has kernels for some of them.
"""

import functools
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typing_extensions import override

from sluicegate.backends.app import make_routes, open_backend
from sluicegate.backends.errors import ExecutorDied, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import OpenExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.qualification.half_precision import RECORD, HalfVerdict
from sluicegate.backends.serving.device_watch import DeviceWatch
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import GpuState, Task
from tests.integration.test_device_graphs import HEADS, HEADS_HALF, Opening
from tests.parity.checkpoints import Checkpoint, Family, Purpose
from tests.parity.fewer_families import HIDDEN
from tests.parity.served import write_models
from tests.support.backend_calls import Backend

pytestmark = pytest.mark.anyio
HALF = {"heads-fp16": 0.1}
RANGES_HALF = "model.cuda-ranges-fp16.onnx"


Imported = Callable[..., Path]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Return what imports a checkpoint into a repository of its own, once."""

    @functools.cache
    def write(checkpoint: Checkpoint) -> Path:
        return write_models(tmp_path_factory.mktemp("models"), [checkpoint])

    return write


@pytest.fixture
def imported(tmp_path: Path, repositories: Imported) -> Imported:
    """Return what makes a copy of a revision, which nothing was measured of."""

    def copy(family: Family = "bert", purpose: Purpose = "many") -> Path:
        checkpoint = Checkpoint(family=family, purpose=purpose)
        shutil.copytree(repositories(checkpoint), tmp_path / "models")
        return tmp_path / "models" / checkpoint.name / "1"

    return copy


@asynccontextmanager
async def serving(folder: Path, opening: OpenExecutor, **given: Any) -> AsyncIterator[Backend]:
    """Run a backend whose device is stood in for."""
    settings = BackendSettings(models=folder.parent.parent, **{"provider": "cuda", **given})
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opening) as repository:
        yield Backend(make_routes(repository, settings, NO_TRACING), repository)


async def precision(folder: Path, opening: OpenExecutor, **given: Any) -> str:
    async with serving(folder, opening, **given) as backend:
        (info,) = backend.repository.core.state().models
    return info.profile


def reasons(folder: Path) -> list[str]:
    document = msgspec.json.decode((folder / RECORD).read_bytes())
    return msgspec.convert(document["measured"], HalfVerdict).reasons


@pytest.mark.parametrize(
    ("family", "purpose"),
    [
        ("bert", "many"),
        ("distilbert", "text"),
        ("electra", "tokens"),
        ("roberta", "embed"),
        ("bert", "cross"),
    ],
)
async def test_each_kind_of_model_is_judged_by_its_own_answers(
    imported: Imported, family: Family, purpose: Purpose
) -> None:
    folder = imported(family, purpose)

    found = await precision(folder, Opening(**HALF))

    assert (found, reasons(folder)) == ("fp16", [])


async def test_the_answers_are_those_of_the_graph_in_half_precision(imported: Imported) -> None:
    folder = imported()
    opening = Opening(**HALF)
    name = folder.parent.name

    async with serving(folder, opening) as backend:
        answer = await backend.answer(name, Task.CLASSIFY, "a text")
    async with serving(folder, Opening(), provider="cpu") as backend:
        there = await backend.answer(name, Task.CLASSIFY, "a text")

    assert opening.opened[-1] == HEADS_HALF
    scores = [{each["label"]: each["score"] for each in a["labels"]} for a in (answer, there)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-2)


async def test_a_graph_whose_answers_flip_leaves_the_model_in_tf32(imported: Imported) -> None:
    folder = imported()
    spoil(folder / HEADS_HALF)

    opening = Opening(**HALF)

    assert await precision(folder, opening) == "tf32"
    assert "of labels flip" in reasons(folder)[0]
    assert HEADS_HALF not in opening.opened[-1:]


def spoil(path: Path) -> None:
    """Move every logit by little beside the largest one, and by more than they are apart."""
    model = onnx.load(str(path))
    name = "classifier.bias"
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    values = numpy_helper.to_array(bias)
    moved = np.where(np.arange(len(values)) % 2, 0.06, -0.06).astype(values.dtype)
    bias.CopyFrom(numpy_helper.from_array(values + moved, name))
    path.write_bytes(model.SerializeToString())


async def test_adapters_are_never_in_half_precision_because_texts_judge_none(
    imported: Imported,
) -> None:
    folder = imported("bert", "embed")
    (folder / "model.yaml").write_text("adapters: [one]")

    assert await precision(folder, Opening(**HALF)) == "tf32"
    assert not (folder / RECORD).exists()


async def test_a_judgement_is_kept(imported: Imported) -> None:
    folder = imported()
    await precision(folder, Opening(**HALF))
    later = Opening(**HALF)

    assert await precision(folder, later) == "fp16"
    assert later.opened == [HEADS_HALF]


async def test_a_judgement_that_failed_is_made_again(imported: Imported) -> None:
    """Another process had the memory of the device, say."""
    folder = imported()
    opening = Opening(**HALF)

    def open_executor(source: GraphSource) -> ModelExecutor:
        # Once to be compared with other graphs; then to be judged.
        if opening.opened.count(HEADS_HALF) and source.path.name == HEADS_HALF:
            raise OutOfMemory("the device is out of memory")
        return opening(source)

    assert await precision(folder, open_executor) == "tf32"
    assert not (folder / RECORD).exists()
    assert await precision(folder, Opening(**HALF)) == "fp16"


async def test_a_graph_that_found_no_memory_is_judged_once_it_does(imported: Imported) -> None:
    folder = imported()
    opening = Opening(**HALF)

    def open_executor(source: GraphSource) -> ModelExecutor:
        if source.path.name.endswith("-fp16.onnx"):
            raise OutOfMemory("the device is out of memory for this model")
        return opening(source)

    assert await precision(folder, open_executor) == "tf32"
    assert await precision(folder, Opening(**HALF)) == "fp16"


async def test_each_graph_is_judged_by_its_own_answers(imported: Imported) -> None:
    """Batches of another size may have another quickest graph."""
    folder = imported()
    spoil(folder / RANGES_HALF)
    assert await precision(folder, Opening(**HALF)) == "fp16"

    found = await precision(folder, Opening(**{"ranges-fp16": 0.1}), max_batch_rows=8)

    assert found == "tf32"
    assert "of labels flip" in reasons(folder)[0]


class Breaking(Opening):
    """Opens graphs on a device that the fp16 graph breaks when it is opened once more."""

    @override
    def __call__(self, source: GraphSource) -> ModelExecutor:
        if self.opened.count(HEADS_HALF) > 1:
            raise ExecutorDied("the device failed; restart the backend")
        executor = super().__call__(source)
        if self.opened.count(HEADS_HALF) > 1:
            executor.run = self.fail  # type: ignore[method-assign, assignment]
        return executor

    @staticmethod
    def fail(_: PaddedBatch) -> FloatArray:
        raise ExecutorDied("the device failed; restart the backend")


async def test_a_graph_that_breaks_the_device_has_the_process_replaced(imported: Imported) -> None:
    """It ran in the process that tries graphs. The next backend must not open it again."""
    folder = imported()
    state = GpuState(device=0, uuid="GPU-1", name="NVIDIA H100", used_bytes=1, total_bytes=2)

    async with serving(folder, Breaking(**HALF)) as backend:
        core = backend.repository.core
        watch = DeviceWatch(lambda: state, failures=core.failures, seen=lambda _: None)
        reason = await watch.until_failed()

    assert reason == f"{folder}: cannot load the model: the device failed; restart the backend"
    assert core.model_set.problems == {folder.parent.name: reason}
    assert not core.state().ready
    later = Opening(**HALF)
    assert await precision(folder, later) == "tf32"
    assert reasons(folder) == [f"`{HEADS_HALF}` broke the device"]


async def test_a_device_that_is_broken_already_has_the_process_replaced(
    imported: Imported,
) -> None:
    """The graph that is served is opened after all comparisons."""
    folder = imported()
    await precision(folder, Opening(), gpu_fp16=False)

    def open_executor(source: GraphSource) -> ModelExecutor:
        raise ExecutorDied("the device failed; restart the backend")

    async with serving(folder, open_executor, gpu_fp16=False) as backend:
        core = backend.repository.core
        assert core.failures() == list(core.model_set.problems.values())


async def test_texts_of_the_revision_come_before_those_of_sluicegate(imported: Imported) -> None:
    """So few texts cannot show that at most one in a hundred flips."""
    folder = imported()
    (folder / "texts.txt").write_text("My card is lost.\nWhere is it?\n")

    assert await precision(folder, Opening(**HALF)) == "tf32"
    assert "with 2 texts" in reasons(folder)[0]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "fp16"),
        ({"gpu_fp16": False}, "tf32"),
        ({"gpu_fp16": False, "gpu_tf32": False}, "fp32"),
        ({"provider": "cpu"}, "fp32"),
        ({"provider": "openvino"}, "fp32"),
    ],
)
async def test_the_settings_and_the_device_decide(
    imported: Imported, given: dict[str, Any], found: str
) -> None:
    assert await precision(imported(), Opening(**HALF), **given) == found


@pytest.mark.parametrize("declared", ["fp16", "bf16", "int8"])
async def test_a_precision_that_is_declared_stays(imported: Imported, declared: str) -> None:
    folder = imported()
    (folder / "model.yaml").write_text(f"truncate: true\nprofile: {declared}\n")

    assert await precision(folder, Opening()) == declared
    assert not (folder / RECORD).exists()


async def test_a_model_without_a_graph_in_fp16_runs_in_tf32(imported: Imported) -> None:
    folder = imported()
    for path in folder.glob("*-fp16.onnx"):
        path.unlink()

    assert await precision(folder, Opening()) == "tf32"
    assert not (folder / RECORD).exists()


async def test_a_graph_in_fp32_that_is_quicker_stays(imported: Imported) -> None:
    folder = imported()

    assert await precision(folder, Opening(**{"heads-fp16": 3.0, "ranges-fp16": 3.0})) == "tf32"


@pytest.mark.parametrize(("given", "instead"), [({}, "tf32"), ({"gpu_tf32": False}, "fp32")])
async def test_a_graph_in_another_precision_that_is_quicker_is_taken(
    imported: Imported, given: dict[str, Any], instead: str
) -> None:
    """The plain graph in fp32 is slower than both."""
    folder = imported()
    opening = Opening(**{"heads-fp16": 0.1, "ranges-fp16": 0.1, "heads": 0.05})

    assert await precision(folder, opening, **given) == instead
    assert opening.opened[-1] == HEADS
    assert not (folder / RECORD).exists()


async def test_a_head_has_the_precision_of_its_encoder(imported: Imported) -> None:
    """Its answers are computed of the encoder's vectors."""
    folder = imported("bert", "embed")
    head = folder.parent.parent / "head" / "1"
    head.mkdir(parents=True)
    np.savez(head / "head.npz", w0=np.ones((HIDDEN, 2), np.float32), b0=np.zeros(2, np.float32))
    (head / "model.yaml").write_text(
        f"kind: head\nencoder: {folder.parent.name}\ntask: classify\noutput: pooled\n"
        "labels: [a, b]\nweights: head.npz\n"
    )

    async with serving(folder, Opening(**HALF)) as backend:
        state = backend.repository.core.state()

    assert {info.name: info.profile for info in state.models} == {
        folder.parent.name: "fp16",
        "head": "fp16",
    }
