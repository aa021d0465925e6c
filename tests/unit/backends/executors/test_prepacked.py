"""Packed weights: where they are kept and used, and when they are packed anew."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
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
from sluicegate.backends.executors.shared_weights import share_weights
from sluicegate.backends.types import OutputKind

WIDTH = 64


def write_graph(path: Path, *, words: int, factor: float = 1.0) -> None:
    """Write a graph whose weights stand behind a table of so many integers.

    Its vectors are `WIDTH` times the `factor` of the last weight.
    """
    weights: dict[str, NDArray[Any]] = {
        "table": np.arange(words, dtype=np.int64) % WIDTH,
        "words": np.ones((WIDTH, WIDTH), dtype=np.float32),
        "kernel": np.full((WIDTH, WIDTH), factor, dtype=np.float32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
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


def open_graph(path: Path) -> OnnxExecutor:
    outputs = {OutputKind.TOKENS: "tokens"}
    given = GraphSource(path=path, outputs=outputs, dimensions=WIDTH, digest="d")
    return OnnxExecutor(given, worker_threads=1)


def packed_files(graph: Path) -> dict[str, int]:
    """Return the inodes of the files with packed weights, by name."""
    files = (graph.parent / ".prepacked").glob("*/*")
    return {file.name: file.stat().st_ino for file in files if file.name != "model.onnx"}


@pytest.mark.parametrize(("words", "files"), [(511, 2), (2048, 3), (2049, 3)])
def test_a_packed_graph_runs_wherever_its_weights_are(
    tmp_path: Path, words: int, files: int
) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, words=words)

    tokens = open_graph(path).run(ones(2, 5, OutputKind.TOKENS))

    assert np.array_equal(tokens, np.full((2, 5, WIDTH), WIDTH))
    assert len(packed_files(path)) == files


def test_models_share_the_files_of_equal_weights(tmp_path: Path) -> None:
    one, two = (tmp_path / name / "1" / "model.onnx" for name in ("one", "two"))
    write_graph(one, words=2049)
    write_graph(two, words=2049, factor=2.0)

    executors = [open_graph(one), open_graph(two)]

    tokens = [each.run(ones(1, 1, OutputKind.TOKENS))[0, 0, 0] for each in executors]
    assert tokens == [WIDTH, 2 * WIDTH]
    assert len(packed_files(one).items() & packed_files(two).items()) == 2
    assert len(packed_files(two)) == 3


def test_a_damaged_file_of_another_model_is_not_shared(tmp_path: Path) -> None:
    one, two = (tmp_path / name / "1" / "model.onnx" for name in ("one", "two"))
    write_graph(one, words=2049)
    write_graph(two, words=2049, factor=2.0)
    open_graph(one)
    for file in (one.parent / ".prepacked").glob("*/*"):
        file.write_bytes(bytes(file.stat().st_size))

    tokens = open_graph(two).run(ones(1, 1, OutputKind.TOKENS))

    assert tokens[0, 0, 0] == 2 * WIDTH
    assert not packed_files(one).items() & packed_files(two).items()


def test_a_graph_with_weights_in_a_branch_is_not_packed(tmp_path: Path) -> None:
    path, wide = tmp_path / "model.onnx", np.ones((WIDTH, WIDTH), dtype=np.float32)
    branches = {
        name: helper.make_graph(
            [helper.make_node("MatMul", ["hidden", f"{name}.w"], [f"{name}.out"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}.out", TensorProto.FLOAT, ["rows", WIDTH])],
            [numpy_helper.from_array(wide * factor, f"{name}.w")],
        )
        for factor, name in ((2, "then_branch"), (3, "else_branch"))
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "kernel"], ["hidden"]),
            helper.make_node("If", ["which"], ["y"], **branches),
        ],
        "branches",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH]),
            helper.make_tensor_value_info("which", TensorProto.BOOL, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])],
        [numpy_helper.from_array(wide, "kernel")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    path.write_bytes(model.SerializeToString())

    packed = prepacked_graph(
        path, digest="d", runtime="r", save=lambda target: save_packed(path, target)
    )

    assert packed is None
    assert not list((tmp_path / ".prepacked").glob("*/"))


def test_a_graph_whose_packed_files_are_damaged_runs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, words=2049)
    open_graph(path)
    for name in packed_files(path):
        (file,) = path.parent.glob(f".prepacked/*/{name}")
        file.write_bytes(b"")

    tokens = open_graph(path).run(ones(1, 1, OutputKind.TOKENS))

    assert tokens[0, 0, 0] == WIDTH
    assert not packed_files(path)


def test_a_description_of_weights_that_is_unknown_is_refused(tmp_path: Path) -> None:
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    write_graph(path, words=4)
    weights.write_bytes(bytes(64))
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    for key, value in (("location", "weights.bin"), ("length", "32"), ("packed", "a|1")):
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())

    with pytest.raises(OSError, match="unknown fields: packed"):
        share_weights(path, weights, [])


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

    first = pack("second")
    assert first is not None
    first.parent.rename(first.parent.with_name(f"building-by-a-killed-process-{first.parent.name}"))
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
