"""Packed weights that would lie where a processor cannot load them from are not used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.prepacked import prepacked_graph
from backends.executors.provider import runtime_version, save_packed
from backends.types import OutputKind

WIDTH = 64


def write_graph(path: Path, *, words: int) -> None:
    """Write a graph whose weight stands behind a table of so many integers."""
    weights: dict[str, NDArray[Any]] = {
        "table": np.arange(words, dtype=np.int64) % WIDTH,
        "words": np.ones((WIDTH, WIDTH), dtype=np.float32),
        "kernel": np.ones((WIDTH, WIDTH), dtype=np.float32),
    }
    rows = ["batch", "sequence"]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["places"]),
        helper.make_node("Gather", ["words", "places"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "kernel"], ["tokens"]),
    ]
    graph = helper.make_graph(
        nodes,
        "packed",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT32, rows)],
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [*rows, WIDTH])],
        [numpy_helper.from_array(tensor, name) for name, tensor in weights.items()],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(("words", "is_kept"), [(512, True), (511, False)])
def test_a_graph_is_packed_where_its_weights_are_aligned(
    tmp_path: Path, words: int, *, is_kept: bool
) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, words=words)

    kept = prepacked_graph(
        path,
        digest="d",
        runtime=runtime_version(),
        save=lambda target: save_packed(path, target),
    )

    assert (kept is not None) is is_kept


def test_a_graph_with_odd_weights_runs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, words=511)
    source = GraphSource(
        path=path, outputs={OutputKind.TOKENS: "tokens"}, dimensions=WIDTH, digest="d"
    )

    executor = OnnxExecutor(source, lanes=1)

    ids = np.ones((2, 5), dtype=np.int32)
    tokens = executor.run(ids=ids, mask=ids, type_ids=ids, output=OutputKind.TOKENS)
    assert tokens.shape == (2, 5, WIDTH)
