"""An ONNX file of a known family is rebuilt as a quick graph, or else served as it is.

The files are exports of torch (`tests/parity/export_graphs.py`); the answers of a rebuilt graph are
compared with those of the file before it is taken.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.graphs.exported import read_exported
from sluicegate.backends.model_tools.graphs.weights import read_safetensors
from sluicegate.backends.model_tools.importing.convert import convert
from tests.parity.checkpoints import Checkpoint, Family, write_checkpoint
from tests.parity.texts import DATA

EXPORTS: dict[Family, Path] = {
    "bert": DATA / "bert-text-torchscript.onnx",
    "roberta": DATA / "roberta-text-torchscript.onnx",
    "modernbert": DATA / "modernbert-text-dynamo.onnx",
}
REAL_TOKENS_ONLY = "GatherND"


@pytest.fixture(params=EXPORTS)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def source(family: Family, tmp_path: Path) -> Path:
    """A folder of an exported graph, without the weights that it was made of."""
    folder = write_checkpoint(Checkpoint(family=family, purpose="text"), tmp_path / "source")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    shutil.copyfile(EXPORTS[family], folder / "model.onnx")
    return folder


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(str(path)).graph.node}


def test_the_weights_of_an_export_are_those_of_its_checkpoint(source: Path, tmp_path: Path) -> None:
    """Those of products, whose names are lost, among them."""
    found = read_exported(onnx.load(str(source / "model.onnx")))

    published = read_safetensors(tmp_path / "model.safetensors")
    kernels = [name for name in published if name.endswith(".weight")]
    assert kernels
    for name in kernels:
        own = name.removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")
        assert found[own].tolist() == published[name].tolist(), name


def test_an_export_becomes_the_graph_of_its_checkpoint(
    family: Family, source: Path, tmp_path: Path
) -> None:
    """Byte for byte what is built of the safetensors, so as quick."""
    made_of = convert(source, tmp_path / "rebuilt")
    (source / "model.onnx").unlink()
    shutil.copyfile(tmp_path / "model.safetensors", source / "model.safetensors")
    convert(source, tmp_path / "built")

    assert made_of == f"the graph `model.onnx`, rebuilt as a `{family}`"
    rebuilt = (tmp_path / "rebuilt" / "model.onnx").read_bytes()
    assert rebuilt == (tmp_path / "built" / "model.onnx").read_bytes()
    assert REAL_TOKENS_ONLY in operators(tmp_path / "rebuilt" / "model.onnx")


def test_a_rebuilt_graph_reads_special_tokens_as_the_export_does(
    family: Family, source: Path, tmp_path: Path
) -> None:
    """The padding's too, which a text may hold: RoBERTa gives it no position of its own."""
    convert(source, tmp_path / "rebuilt")
    row = np.array([[0, 9, 1, 1, 8, 2, 3, 4, 1, 7]], dtype=np.int32)

    expected, found = (
        answer(path, row) for path in (EXPORTS[family], tmp_path / "rebuilt" / "model.onnx")
    )

    np.testing.assert_allclose(found, expected, atol=1e-4)


def answer(path: Path, row: NDArray[np.int32]) -> NDArray[np.float32]:
    session = open_session(path, DeviceOptions(provider="cpu"))
    given = {"input_ids": row, "attention_mask": np.ones_like(row)}
    given["token_type_ids"] = np.zeros_like(row)
    kinds = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feeds = {each.name: given[each.name].astype(kinds[each.type]) for each in session.get_inputs()}
    logits: NDArray[np.float32] = session.run(["logits"], feeds)[0]
    return logits


@pytest.mark.parametrize("family", ["bert"], indirect=True)
def test_a_graph_that_would_answer_otherwise_is_served_as_it_is(
    source: Path, tmp_path: Path
) -> None:
    """Here its configuration tells of another epsilon than the graph has."""
    config = json.loads((source / "config.json").read_bytes()) | {"layer_norm_eps": 0.1}
    (source / "config.json").write_text(json.dumps(config))

    made_of = convert(source, tmp_path / "model")

    assert "unchanged: `logits` would differ by" in made_of
    assert (tmp_path / "model" / "model.onnx").read_bytes() == EXPORTS["bert"].read_bytes()


def forget_names(model: ModelProto) -> None:
    for node in model.graph.node:
        node.name = ""
    for place, tensor in enumerate(model.graph.initializer):
        for node in model.graph.node:
            for at, name in enumerate(node.input):
                if name == tensor.name:
                    node.input[at] = f"w{place}"
        tensor.name = f"w{place}"


@pytest.mark.parametrize("family", ["bert"], indirect=True)
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "no embeddings"),
        ({"model_type": "gpt2"}, "`gpt2`"),
    ],
)
def test_a_graph_of_unknown_making_is_served_as_it_is(
    source: Path, tmp_path: Path, config: dict[str, str], reason: str
) -> None:
    """Nothing is guessed of weights without names, nor of another family."""
    model = onnx.load(str(source / "model.onnx"))
    forget_names(model)
    (source / "model.onnx").write_bytes(model.SerializeToString())
    known = json.loads((source / "config.json").read_bytes())
    (source / "config.json").write_text(json.dumps(known | config))

    made_of = convert(source, tmp_path / "model")

    assert made_of.startswith("the graph `model.onnx`, unchanged: ")
    assert reason in made_of
    given = (source / "model.onnx").read_bytes()
    assert (tmp_path / "model" / "model.onnx").read_bytes() == given
