"""An import has forms for other devices, and a backend takes the quickest that agrees.

There is no such device here, so the forms are opened on the CPU, which has kernels for some.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import pad
from backends.model_tools.importing.convert import convert
from backends.qualification.forms import RECORD, QuickestForm, open_quickest
from backends.types import OutputKind
from tests.parity.checkpoints import Checkpoint, Family, write_checkpoint

HEADS, RANGES, PACKED = (f"model.cuda-{kind}.onnx" for kind in ("heads", "ranges", "packed"))
OWN = "model.onnx"


def written(tmp_path: Path, family: Family = "bert") -> Path:
    source = write_checkpoint(Checkpoint(family=family, purpose="text"), tmp_path / "source")
    convert(source, tmp_path / "model")
    return tmp_path / "model"


def graph_source(folder: Path) -> GraphSource:
    outputs = {OutputKind.POOLED: "logits"}
    return GraphSource(
        path=folder / OWN, outputs=outputs, dimensions=3, max_tokens=64, digest="one"
    )


class Opening:
    """Opens graphs on the CPU, with the seconds that a batch of each is to take."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = {f"model.cuda-{kind}.onnx": value for kind, value in seconds.items()}
        self.opened: list[str] = []

    def __call__(self, source: GraphSource) -> ModelExecutor:
        self.opened.append(source.path.name)
        executor = OnnxExecutor(msgspec.structs.replace(source, digest=""), worker_threads=1)
        base = self.seconds.get(source.path.name, 1.0)
        executor.cost = CostModel(base=base, padded=0.0, square=0.0)
        return executor


def choose(folder: Path, opening: Callable[[GraphSource], ModelExecutor]) -> str:
    open_quickest(graph_source(folder), provider="cuda", profile="fp32", open_executor=opening)
    document = msgspec.json.decode((folder / RECORD).read_bytes())
    return msgspec.convert(document["measured"], QuickestForm).file


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet"])
def test_forms_answer_as_the_graph_whose_weights_they_share(tmp_path: Path, family: Family) -> None:
    """The CPU has no kernel without padding; ranges it reads otherwise than CUDA."""
    folder = written(tmp_path, family)
    source = graph_source(folder)
    batch = pad([np.arange(5, 5 + n, dtype=np.int32) for n in (3, 12, 1, 9)], OutputKind.POOLED)

    own = OnnxExecutor(msgspec.structs.replace(source, digest=""), worker_threads=1).run(batch)
    form = msgspec.structs.replace(source, path=folder / HEADS, digest="")
    found = OnnxExecutor(form, worker_threads=1).run(batch)

    np.testing.assert_allclose(found, own, atol=1e-5)
    names = sorted(path.name for path in folder.glob("*.onnx"))
    packed = [] if family == "mpnet" else [PACKED]
    assert names == sorted([OWN, HEADS, RANGES, *packed])
    assert (folder / HEADS).stat().st_size < (folder / OWN).stat().st_size / 4


def test_forms_of_an_encoder_end_in_the_same_modules(tmp_path: Path) -> None:
    """Here vectors of length one, as its `modules.json` says."""
    source = write_checkpoint(Checkpoint(family="bert", purpose="embed"), tmp_path / "source")
    convert(source, tmp_path / "model")
    outputs = {OutputKind.POOLED: "pooled"}
    graph = GraphSource(path=tmp_path / "model" / OWN, outputs=outputs, dimensions=32)
    form = msgspec.structs.replace(graph, path=tmp_path / "model" / HEADS)
    batch = pad([np.arange(5, 5 + n, dtype=np.int32) for n in (3, 12, 1)], OutputKind.POOLED)

    own, found = (OnnxExecutor(each, worker_threads=1).run(batch) for each in (graph, form))

    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(found, own, atol=1e-5)


def test_the_quickest_form_that_runs_is_taken_and_remembered(tmp_path: Path) -> None:
    folder = written(tmp_path)
    first, later = Opening(heads=0.5, packed=0.1), Opening()

    assert choose(folder, first) == HEADS  # the CPU cannot run what would be quicker
    assert choose(folder, later) == HEADS
    assert later.opened == [HEADS]


def test_the_graph_itself_stays_where_no_form_is_quicker(tmp_path: Path) -> None:
    folder = written(tmp_path)

    assert choose(folder, Opening(heads=2.0, ranges=2.0)) == OWN


def test_a_form_that_answers_otherwise_is_not_taken(tmp_path: Path) -> None:
    folder = written(tmp_path)
    model = onnx.load(str(folder / HEADS))
    name = "classifier.bias"
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, name))
    (folder / HEADS).write_bytes(model.SerializeToString())

    assert choose(folder, Opening(heads=0.5, ranges=2.0)) == OWN


def test_other_providers_run_the_graph_itself(tmp_path: Path) -> None:
    folder = written(tmp_path)
    opening = Opening()

    open_quickest(graph_source(folder), provider="cpu", profile="fp32", open_executor=opening)

    assert opening.opened == [OWN]
    assert not (folder / RECORD).exists()
