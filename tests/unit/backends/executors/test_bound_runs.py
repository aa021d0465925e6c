"""The GPU's executor reuses memory, counts its padding and keeps captured shapes apart."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper
from typing_extensions import override

from sluicegate.backends.errors import ModelProblem, OutOfMemory
from sluicegate.backends.executors.binding import Bindings, BoundKey, BoundTensors
from sluicegate.backends.executors.buckets import Buckets, Shape
from sluicegate.backends.executors.cuda import CudaExecutor, RunLimits
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.provider import DeviceOptions
from sluicegate.backends.types import FloatArray, OutputKind
from testing.model_repository import DIMENSIONS, toy_graph

OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}


@pytest.fixture
def source(tmp_path: Path) -> GraphSource:
    path = tmp_path / "model.onnx"
    path.write_bytes(toy_graph())
    return GraphSource(path=path, outputs=OUTPUTS, dimensions=DIMENSIONS, max_tokens=64)


def open_cpu(source: GraphSource, **limits: object) -> CudaExecutor:
    given = RunLimits(**({"runs": 1} | limits))  # type: ignore[arg-type]
    return CudaExecutor(source, options=DeviceOptions(provider="cpu"), limits=given)


def run(
    executor: CudaExecutor | OnnxExecutor,
    lengths: list[int],
    output: OutputKind = OutputKind.POOLED,
    *,
    seed: int = 1,
) -> FloatArray:
    random = np.random.default_rng(seed)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    ids = random.integers(1, 80, mask.shape, dtype=np.int32) * mask
    types = random.integers(0, 2, mask.shape, dtype=np.int32) * mask * (seed % 2)
    return executor.run(PaddedBatch(ids=ids, mask=mask, type_ids=types, output=output))


@pytest.mark.parametrize("graph_rows", [0, 8])
def test_whatever_ran_before_a_batch_is_answered_as_by_a_fresh_session(
    source: GraphSource, graph_rows: int
) -> None:
    """Ids, masks, types and padding rows of earlier batches leave nothing behind."""
    bound = open_cpu(source, graph_rows=graph_rows, graph_tokens=256)
    plain = OnnxExecutor(source, worker_threads=1)

    for seed, lengths in enumerate([[9, 30], [31, 2, 5], [3], [9, 30], [25, 26, 1], [30, 30, 30]]):
        for output in OUTPUTS:
            np.testing.assert_allclose(
                run(bound, lengths, output, seed=seed),
                run(plain, lengths, output, seed=seed),
                atol=1e-5,
            )


def test_an_answer_is_no_view_of_memory_that_is_used_again(source: GraphSource) -> None:
    executor = open_cpu(source)

    first = run(executor, [5, 6], seed=1)
    kept = first.copy()
    run(executor, [5, 6], seed=2)

    assert np.array_equal(first, kept)


def test_batches_of_like_size_share_their_memory(source: GraphSource) -> None:
    """9 rows of 17 and 10 of 20 tokens run in one shape."""
    executor = open_cpu(source)
    before = executor.statistics().shapes

    run(executor, [17] * 9)
    run(executor, [20] * 10)

    assert executor.statistics().shapes == before + 1


def test_padding_is_counted_as_it_runs(source: GraphSource) -> None:
    executor = open_cpu(source, buckets=Buckets(length_multiple=16, row_steps=1))
    before = executor.statistics()

    run(executor, [9, 10, 11])

    after = executor.statistics()
    assert after.tokens - before.tokens == 30
    assert after.bucket_tokens - before.bucket_tokens == 4 * 16


def test_captured_shapes_are_replayed_and_others_are_not(source: GraphSource) -> None:
    executor = open_cpu(source, graph_rows=2, graph_tokens=32)
    before = executor.statistics().replays

    run(executor, [5, 9])
    run(executor, [5, 9], OutputKind.TOKENS)
    run(executor, [5, 9, 3])

    assert executor.statistics().replays == before + 1


def test_only_an_outsized_batch_shrinks_the_arena(source: GraphSource) -> None:
    executor = open_cpu(source, outsized_tokens=128)

    loaded = executor.statistics().shrinks

    run(executor, [20] * 4)
    usual = executor.statistics().shrinks
    run(executor, [40] * 4)

    assert (usual - loaded, executor.statistics().shrinks - loaded) == (0, 1)


def test_memory_that_a_captured_graph_writes_to_is_never_shrunk(source: GraphSource) -> None:
    executor = open_cpu(source, outsized_tokens=128, graph_rows=1, graph_tokens=8)

    run(executor, [40] * 4)

    assert executor.statistics().shrinks == 0


def test_a_row_as_long_as_the_model_reads_is_not_padded_beyond_it(source: GraphSource) -> None:
    """The toy model has 64 positions, and 63 tokens fit in no bucket below 64."""
    executor = open_cpu(source, buckets=Buckets(length_multiple=50))

    assert run(executor, [63]).shape == (1, DIMENSIONS)


def test_a_trial_run_that_fails_names_the_graph(source: GraphSource) -> None:
    """The shapes to capture are run when the model is loaded, not when it is asked."""
    beyond = msgspec.structs.replace(source, max_tokens=128)

    with pytest.raises(ModelProblem, match=r"model\.onnx: a trial run failed"):
        open_cpu(beyond, graph_rows=1, graph_tokens=128)


def test_a_graph_that_finds_no_memory_is_not_taken_for_a_broken_one(tmp_path: Path) -> None:
    """It may find some later."""
    path = tmp_path / "model.onnx"
    path.write_bytes(insatiable_graph())
    source = GraphSource(path=path, outputs={OutputKind.POOLED: "pooled"}, dimensions=1)

    with pytest.raises(OutOfMemory, match="the device is out of memory"):
        open_cpu(source)


def insatiable_graph() -> bytes:
    """Return a graph that wants more bytes than any machine can address."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "length"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["rows", "length"])
    pooled = helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["rows", 1])
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["shape"]),
        helper.make_node("Mul", ["shape", "factor"], ["huge"]),
        helper.make_node("ConstantOfShape", ["huge"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["zero"], keepdims=1),
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["real"]),
        helper.make_node("Cast", ["real"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["values"], ["means"], axes=[1], keepdims=1),
        helper.make_node("Add", ["means", "zero"], ["pooled"]),
    ]
    factor = helper.make_tensor("factor", TensorProto.INT64, [1], [2**25])
    graph = helper.make_graph(nodes, "insatiable", [ids, mask], [pooled], [factor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


class FakeBound(BoundTensors):
    """A binding of a hundred bytes that touches no session."""

    def __init__(self, closed: list[Shape], shape: Shape) -> None:
        self.shape = shape
        self._closed = closed

    @property
    @override
    def size_bytes(self) -> int:
        return 100

    @override
    def close(self) -> None:
        self._closed.append(self.shape)


def test_the_shapes_used_last_stay_bound_and_captured_ones_always() -> None:
    closed: list[Shape] = []
    keys: list[BoundKey] = [(Shape(n, 8), OutputKind.POOLED) for n in range(1, 5)]
    bindings = Bindings(lambda key: FakeBound(closed, key[0]), max_bytes=250)

    bindings.keep(keys[0])
    for key in (keys[0], keys[1], keys[2], keys[3]):
        bindings.get(key)

    assert closed == [Shape(2, 8), Shape(3, 8)]
    assert (len(bindings), bindings.size_bytes) == (2, 200)
