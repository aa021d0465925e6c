"""ONNX Runtime's optimizer writes graphs for CUDA of a graph that Sluicegate did not build.

The tests open the graphs on the CPU, and expand operators that only CUDA has. They do not show that
the kernels of CUDA compute these operators as documented, nor that the graphs are quicker there.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
    convert_float_to_float16,
)

from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.types import FloatArray, OutputKind
from tests.parity.checkpoints import Checkpoint, Family, write_checkpoint
from tests.parity.fewer_families import HIDDEN
from tests.parity.texts import DATA
from tests.support.expanded_graphs import expand
from tests.support.graph_runs import with_shapes
from tests.support.quantized import make_dynamic

OWN, EXACT, HALF = "model.onnx", "model.cuda-optimized.onnx", "model.cuda-optimized-fp16.onnx"
PACKED, PACKED_HALF = "model.cuda-packed.onnx", "model.cuda-packed-fp16.onnx"
ALL = {OWN, EXACT, HALF, PACKED, PACKED_HALF}
EXPORTS: dict[Family, Path] = {
    "bert": DATA / "bert-text-torchscript.onnx",
    "roberta": DATA / "roberta-text-torchscript.onnx",
    "modernbert": DATA / "modernbert-text-dynamo.onnx",
}
FUSED: list[Family] = ["bert", "roberta"]


def write_export(family: Family, folder: Path) -> Path:
    """Write the export of a family under the name of an unknown family."""
    source = write_checkpoint(Checkpoint(family=family, purpose="text"), folder)
    (source / "model.safetensors").unlink()
    shutil.copyfile(EXPORTS[family], source / OWN)
    config = json.loads((source / "config.json").read_bytes())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "unheard-of"}))
    return source


def write_encoder(pooling: str, folder: Path) -> Path:
    """Write the export of an encoder whose sums of vectors do not fit into fp16."""
    source = write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)
    (source / "model.safetensors").unlink()
    model = onnx.load(str(EXPORTS["bert"]))
    last = next(n for n in reversed(model.graph.node) if n.op_type == "LayerNormalization")
    weight = next(t for t in model.graph.initializer if t.name == last.input[1])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2000, weight.name))
    end = 1 + next(place for place, node in enumerate(model.graph.node) if node == last)
    last.output[0] = "last_hidden_state"
    del model.graph.node[end:], model.graph.output[:]
    sizes: list[str | int | None] = ["batch", "sequence", HIDDEN]
    model.graph.output.append(
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, sizes)
    )
    onnx.save(model, str(source / OWN))
    config = json.loads((source / "config.json").read_bytes())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "unheard-of"}))
    settings = {"word_embedding_dimension": HIDDEN, f"pooling_mode_{pooling}": True}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return source


def imported(source: Path, target: Path) -> Path:
    assert "unchanged" in convert(source, target)
    return target


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.onnx")}


def answers(path: Path, output: str = "logits", dimensions: int = 3) -> FloatArray:
    source = GraphSource(path=path, outputs={OutputKind.POOLED: output}, dimensions=dimensions)
    batch = pad([np.arange(5, 5 + n, dtype=np.int32) for n in (3, 40, 1, 15)], OutputKind.POOLED)
    return OnnxExecutor(source, worker_threads=1).run(batch)


def assert_graphs_answer(folder: Path, *names: str) -> None:
    own = answers(folder / OWN)
    for name in names:
        tolerance = 1e-2 if "fp16" in name else 1e-5
        np.testing.assert_allclose(
            answers(folder / name), own, atol=tolerance * np.abs(own).max(), err_msg=name
        )


@pytest.mark.parametrize("family", FUSED)
def test_attention_of_an_export_is_one_node_over_the_same_weights(
    family: Family, tmp_path: Path
) -> None:
    folder = imported(write_export(family, tmp_path / "source"), tmp_path / "model")

    assert files(folder) == ALL
    assert_graphs_answer(folder, EXACT, HALF)
    for name in (EXACT, HALF):
        nodes = onnx.load(str(folder / name), load_external_data=False).graph.node
        assert [node.op_type for node in nodes].count("MultiHeadAttention") == 2
        assert "Softmax" not in {node.op_type for node in nodes}
        assert (folder / name).stat().st_size < (folder / OWN).stat().st_size / 4


@pytest.mark.parametrize("family", FUSED)
def test_a_packed_export_gives_the_results_of_the_padded_one(
    family: Family, tmp_path: Path
) -> None:
    folder = imported(write_export(family, tmp_path / "source"), tmp_path / "model")
    for name in (PACKED, PACKED_HALF):
        model = onnx.load(str(folder / name))
        assert [node.op_type for node in model.graph.node].count("PackedMultiHeadAttention") == 2
        (folder / name).write_bytes(expand(model).SerializeToString())

    assert_graphs_answer(folder, PACKED, PACKED_HALF)


@pytest.mark.parametrize("name", sorted(ALL - {OWN}))
def test_shapes_and_types_of_the_graphs_are_inferred(name: str, tmp_path: Path) -> None:
    folder = imported(write_export("bert", tmp_path / "source"), tmp_path / "model")

    inferred = with_shapes(onnx.load(str(folder / name)))

    known = {value.name: value.type.tensor_type for value in inferred.graph.value_info}
    contexts = [node for node in inferred.graph.node if node.op_type.endswith("HeadAttention")]
    wanted = TensorProto.FLOAT16 if "fp16" in name else TensorProto.FLOAT
    assert [known[node.output[0]].elem_type for node in contexts] == [wanted, wanted]


@pytest.mark.parametrize(
    "pooling", ["mean_tokens", "max_tokens", "cls_token", "weightedmean_tokens", "lasttoken"]
)
def test_graphs_in_fp16_add_up_rows_in_fp32(pooling: str, tmp_path: Path) -> None:
    folder = imported(write_encoder(pooling, tmp_path / "source"), tmp_path / "model")
    for name in (PACKED, PACKED_HALF):
        (folder / name).write_bytes(expand(onnx.load(str(folder / name))).SerializeToString())

    assert files(folder) == ALL
    own = answers(folder / OWN, "pooled", HIDDEN)
    for name in (EXACT, HALF, PACKED, PACKED_HALF):
        found = answers(folder / name, "pooled", HIDDEN)
        np.testing.assert_allclose(found, own, atol=1e-2 * np.abs(own).max(), err_msg=name)


def test_a_graph_that_the_optimizer_cannot_fuse_is_converted_to_fp16(tmp_path: Path) -> None:
    """The optimizer needs biases of layer normalization, which ModernBERT lacks."""
    folder = imported(write_export("modernbert", tmp_path / "source"), tmp_path / "model")

    assert files(folder) == {OWN, HALF}
    assert_graphs_answer(folder, HALF)


def test_graphs_are_written_silently_with_the_extras_alone(
    tmp_path: Path,
) -> None:
    """ONNX Runtime needs `sympy` only for its extra `symbolic`, which is not installed."""
    source = write_export("bert", tmp_path / "source")
    code = (
        "import pathlib, sys; sys.modules['sympy'] = None\n"
        "from sluicegate.backends.model_tools.importing.convert import convert\n"
        "convert(*map(pathlib.Path, sys.argv[1:]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert files(tmp_path / "model") == ALL
    assert (done.stdout, done.stderr) == ("", "")


def test_weights_are_cast_when_a_graph_is_loaded(tmp_path: Path) -> None:
    folder = imported(write_export("bert", tmp_path / "source"), tmp_path / "model")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")

    onnxruntime.InferenceSession(str(folder / HALF), options, providers=["CPUExecutionProvider"])

    before, after = (
        {
            node.output[0]
            for node in onnx.load(str(path), load_external_data=False).graph.node
            if node.op_type == "Cast" and node.input[0].endswith(".fp32")
        }
        for path in (folder / HALF, tmp_path / "loaded.onnx")
    )
    assert before
    assert not before & after


def test_weights_in_a_separate_file_stay_there(tmp_path: Path) -> None:
    source = write_export("bert", tmp_path / "source")
    model = onnx.load(str(source / OWN))
    (source / OWN).unlink()
    onnx.save(model, str(source / OWN), save_as_external_data=True, location="weights.bin")

    folder = imported(source, tmp_path / "model")

    assert files(folder) == ALL
    assert_graphs_answer(folder, EXACT, HALF)
    assert max((folder / name).stat().st_size for name in ALL - {OWN}) < 60_000


def test_an_export_in_fp16_has_one_graph_in_fp16(tmp_path: Path) -> None:
    source = write_export("bert", tmp_path / "source")
    half = convert_float_to_float16(
        onnx.load(str(source / OWN)), keep_io_types=True, disable_shape_infer=True
    )
    (source / OWN).write_bytes(half.SerializeToString())

    folder = imported(source, tmp_path / "model")

    assert files(folder) == {OWN, HALF, PACKED_HALF}
    assert_graphs_answer(folder, HALF)


def test_a_quantized_graph_has_no_device_graphs(tmp_path: Path) -> None:
    source = write_export("bert", tmp_path / "source")
    (source / OWN).write_bytes(make_dynamic((source / OWN).read_bytes()))

    assert files(imported(source, tmp_path / "model")) == {OWN}


def test_a_weight_too_large_for_fp16_is_not_infinite(tmp_path: Path) -> None:
    """A number that masks padding becomes the largest number of fp16."""
    source = write_export("bert", tmp_path / "source")
    model = onnx.load(str(source / OWN))
    table = "bert.embeddings.position_embeddings.weight"
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == table)
    numbers = numpy_helper.to_array(tensor).copy()
    numbers[-1] = 1e6  # of a position that no row has here
    tensor.CopyFrom(numpy_helper.from_array(numbers, table))
    (source / OWN).write_bytes(model.SerializeToString())

    folder = imported(source, tmp_path / "model")

    loaded = onnx.load(str(folder / HALF))
    found = next(tensor for tensor in loaded.graph.initializer if tensor.name == table)
    assert numpy_helper.to_array(found).max() == np.finfo(np.float16).max
    assert_graphs_answer(folder, HALF)
