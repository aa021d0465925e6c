"""A graph in fp16 is one that ONNX Runtime loads, and adds up rows in fp32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper

from sluicegate.backends.model_tools.graphs.half import halve
from sluicegate.backends.types import FloatArray

WIDTH = 8
ROWS = np.arange(1, 41, dtype=np.int32).reshape(1, 40)
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]


def graph(*, norm: str, functions: Sequence[FunctionProto] = ()) -> ModelProto:
    """Return a graph that looks ids up, normalises, adds up each row, and looks them up again."""
    weights: dict[str, NDArray[Any]] = {
        "table": np.random.default_rng(1).standard_normal((64, WIDTH), dtype=np.float32),
        "scale": np.full(WIDTH, 4000, dtype=np.float32),
        "axis": np.array([1], dtype=np.int64),
        "least": np.array(1e-9, dtype=np.float32),
    }
    nodes = [
        helper.make_node("widen" if functions else "Identity", ["ids"], ["wide"]),
        helper.make_node("Gather", ["table", "wide"], ["found"]),
        helper.make_node(norm, ["found", "scale"], ["state"]),
        helper.make_node("Abs", ["state"], ["sizes"]),
        helper.make_node("ReduceSum", ["sizes", "axis"], ["sum"], keepdims=0),
        helper.make_node("Gather", ["table", "wide"], ["again"]),
        helper.make_node("ReduceSum", ["again", "axis"], ["more"], keepdims=0),
        helper.make_node("Max", ["sum", "least", "more"], ["pooled"]),
    ]
    nodes[0].domain = "own" if functions else ""
    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", "sequence"])
    pooled = helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", WIDTH])
    initializers = [numpy_helper.from_array(weights[name], name) for name in weights]
    return helper.make_model(
        helper.make_graph(nodes, "rows", [ids], [pooled], initializers),
        opset_imports=OPSETS,
        functions=functions,
        ir_version=10,
    )


def run(model: ModelProto) -> FloatArray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: FloatArray = session.run(None, {"ids": ROWS})[0]
    return found


def test_rows_are_added_up_in_fp32_after_the_last_normalisation() -> None:
    model = graph(norm="LayerNormalization")

    half = halve(model)

    np.testing.assert_allclose(run(half), run(model), rtol=1e-3)
    kinds = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert kinds["table"] == TensorProto.FLOAT16
    assert run(model).max() > np.finfo(np.float16).max


@pytest.mark.parametrize("norm", ["LayerNormalization", "Mul"])
def test_a_graph_of_functions_is_computed_in_fp16(norm: str) -> None:
    """What a function answers is no float here. Without a normalisation all is in fp16."""
    widen = helper.make_function(
        "own",
        "widen",
        ["narrow"],
        ["wide"],
        [helper.make_node("Cast", ["narrow"], ["wide"], to=TensorProto.INT64)],
        OPSETS[:1],
    )

    half = halve(graph(norm=norm, functions=[widen]))

    largest = run(half).max()
    assert np.isfinite(largest) == (norm == "LayerNormalization")


def test_a_graph_with_a_value_of_unknown_type_is_in_fp16_as_a_whole() -> None:
    """`EmbedLayerNormalization` answers integers second, which `onnx` does not know."""
    model = graph(norm="LayerNormalization")
    counted = helper.make_node(
        "EmbedLayerNormalization",
        ["ids", "", "table", "table", "", "scale", "scale", "ids"],
        ["embedded", "count"],
        domain="com.microsoft",
    )
    many = helper.make_node("Cast", ["count"], ["many"], to=TensorProto.FLOAT)
    model.graph.node.insert(0, counted)
    model.graph.node.insert(1, many)
    model.graph.node[-1].input.append("many")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    assert np.isinf(run(halve(model)).max())
