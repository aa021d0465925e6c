"""Packed weights: where they are kept and used, and when they are packed anew."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.packing import save_packed_apart
from sluicegate.backends.executors.padded_batch import ones
from sluicegate.backends.executors.prepacked import prepacked_graph
from sluicegate.backends.executors.provider import runtime_version, save_packed
from sluicegate.backends.types import OutputKind

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

    executor = OnnxExecutor(source, worker_threads=1)

    tokens = executor.run(ones(2, 5, OutputKind.TOKENS))
    assert tokens.shape == (2, 5, WIDTH)


def test_weights_packed_of_an_earlier_graph_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, words=512)
    other = tmp_path / ".prepacked" / "of-another-machine"
    other.mkdir(parents=True)

    def pack(digest: str) -> Path | None:
        return prepacked_graph(
            path,
            digest=digest,
            runtime=runtime_version(),
            save=lambda target: save_packed_apart(path, target),
        )

    first, second, again = pack("first"), pack("second"), pack("second")

    assert first is not None
    assert second is not None
    assert again == second
    folders = [each for each in second.parent.parent.iterdir() if each.is_dir()]
    assert sorted(folders) == sorted([other, second.parent])


def test_of_two_that_start_together_one_packs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, words=512)
    packing, go_on, packed = threading.Event(), threading.Event(), []

    def save(target: Path) -> None:
        packed.append(target)
        packing.set()
        assert go_on.wait(10.0)
        save_packed(path, target)

    def start() -> Path | None:
        return prepacked_graph(path, digest="d", runtime=runtime_version(), save=save)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(start)
        assert packing.wait(10.0)
        second = pool.submit(start)
        go_on.set()
        found = [first.result(), second.result()]

    assert found[0] == found[1] is not None
    assert len(packed) == 1


def test_what_is_no_graph_is_not_packed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("no graph")

    with pytest.raises(OSError, match="cannot pack"):
        save_packed_apart(path, tmp_path / "packed.onnx")


def test_a_graph_that_cannot_run_its_longest_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    positions = numpy_helper.from_array(np.ones((1, 16, WIDTH), dtype=np.float32), "positions")
    words = numpy_helper.from_array(np.ones((WIDTH, WIDTH), dtype=np.float32), "words")
    rows = ["batch", "sequence"]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
            helper.make_node("Shape", ["input_ids"], ["length"], start=1),
            helper.make_node("Sub", ["length", "length"], ["begin"]),
            helper.make_node("Slice", ["positions", "begin", "length", "axis"], ["places"]),
            helper.make_node("Add", ["embedded", "places"], ["tokens"]),
        ],
        "short",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT32, rows)],
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [*rows, WIDTH])],
        [positions, words, numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    path.write_bytes(model.SerializeToString())
    outputs = {OutputKind.TOKENS: "tokens"}

    OnnxExecutor(
        GraphSource(path=path, outputs=outputs, dimensions=WIDTH, max_tokens=16), worker_threads=1
    )
    with pytest.raises(ModelProblem, match="17 tokens"):
        OnnxExecutor(
            GraphSource(path=path, outputs=outputs, dimensions=WIDTH, max_tokens=17),
            worker_threads=1,
        )
