"""Tests that answers to odd questions equal those of the pipeline `question-answering`.

They are recorded, like the references of `test_parity.py`.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from sluicegate.backends.model_tools.importing.convert import convert
from tests.parity.checkpoints import Checkpoint, all_checkpoints, write_checkpoint
from tests.parity.comparison import compare
from tests.parity.references import read_references, reference_file
from tests.parity.served import MINILM, Served, serving, without_device_graphs, write_models

pytestmark = pytest.mark.anyio
# Of the published encoder, `make parity` alone asks questions.
CHECKPOINTS = [
    each for each in all_checkpoints() if each.purpose == "answer" and each.family != MINILM
]


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    with without_device_graphs():
        models = write_models(tmp_path_factory.mktemp("parity") / "models", CHECKPOINTS)
    async with serving(models) as running:
        yield running


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda each: each.name)
async def test_spans_orders_and_scores_are_those_of_the_pipeline(
    served: Served, checkpoint: Checkpoint
) -> None:
    differences = compare(
        await served.answer(checkpoint, []), read_references(reference_file(checkpoint.name))
    )

    assert len(differences) > 1
    assert [line for line in differences if not line.is_equal] == []


def split_ends(built: Path, exported: Path) -> None:
    """Give a graph an output for the starts and one for the ends of answers."""
    model = onnx.load(built)
    model.producer_name = "pytorch"
    del model.graph.output[:]
    for place, name in enumerate(("start_logits", "end_logits")):
        index = onnx.numpy_helper.from_array(np.array(place, np.int64), f"{name}.index")
        model.graph.initializer.append(index)
        model.graph.node.append(
            onnx.helper.make_node("Gather", ["logits", index.name], [name], axis=2)
        )
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", "width"])
        model.graph.output.append(value)
    # The name of the joined output is free then.
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["both" if name == "logits" else name for name in names]
    onnx.save(model, exported)


async def test_a_graph_with_outputs_for_starts_and_ends_answers_as_the_reference(
    tmp_path: Path,
) -> None:
    """As optimum exports models that answer questions."""
    checkpoint = Checkpoint(family="bert", purpose="answer")
    source, models = write_checkpoint(checkpoint, tmp_path / "source"), tmp_path / "models"
    convert(source, tmp_path / "built")
    split_ends(tmp_path / "built" / "model.onnx", source / "model.onnx")
    (source / "model.safetensors").unlink()

    with without_device_graphs():
        convert(source, models / checkpoint.name / "1")
    async with serving(models) as running:
        answers = await running.answer(checkpoint, [])

    expected = read_references(reference_file(checkpoint.name))
    assert [line for line in compare(answers, expected) if not line.is_equal] == []
