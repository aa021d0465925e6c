"""What every executor promises the batcher, the dummy and ONNX Runtime alike."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import msgspec
import numpy as np
import onnx
import pytest

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import MeasuredCosts
from sluicegate.backends.executors.cuda import CudaExecutor, RunLimits
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.openvino import OpenVinoExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.executors.provider import DeviceOptions
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.executors.tensorrt import open_engines
from sluicegate.backends.executors.upstream import UpstreamExecutor
from sluicegate.backends.model_tools.importing.output_graph import add_joined
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.settings import Provider
from sluicegate.backends.types import FloatArray, JoinedWidth, OutputKind
from testing.model_repository import DIMENSIONS, toy_graph
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.inference_server import inference_server
from tests.support.openvino import need_openvino

GPU = Path("/dev/nvidia0").exists()
OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}


def source(path: Path, **changes: object) -> GraphSource:
    path.write_bytes(toy_graph())
    given = {"path": path, "outputs": OUTPUTS, "dimensions": DIMENSIONS} | changes
    return GraphSource(**given)  # type: ignore[arg-type]


def bound_executor(folder: Path, *, graph_rows: int = 0) -> CudaExecutor:
    """Return the GPU's executor, on the provider that every machine has."""
    return CudaExecutor(
        source(folder / "model.onnx"),
        options=DeviceOptions(provider="cpu"),
        limits=RunLimits(runs=2, graph_rows=graph_rows, graph_tokens=32),
    )


def engines_executor(folder: Path) -> ModelExecutor:
    """Return TensorRT's executor on that provider, of ranges that many batches are larger than."""
    return open_engines(
        source(folder / "model.onnx", max_tokens=256),
        DeviceOptions(provider="cpu"),
        RunLimits(runs=2, batch=BatchBounds(rows=4, tokens=8)),
        lambda source, options, limits: CudaExecutor(source, options=options, limits=limits),
    )


def openvino_executor(folder: Path) -> ModelExecutor:
    need_openvino()
    return OpenVinoExecutor(source(folder / "model.onnx"), worker_threads=2)


def cuda_executor(folder: Path) -> ModelExecutor:
    if not GPU:
        pytest.skip("there is no GPU")
    return CudaExecutor(source(folder / "model.onnx"), options=DeviceOptions())


@contextmanager
def upstream_executor(folder: Path, *, binary: bool) -> Iterator[ModelExecutor]:
    with inference_server(toy_graph(), binary=binary) as server:
        upstream = RemoteModelServer(url=server.url, model="remote", runs=2)
        yield UpstreamExecutor(source(folder / "none", upstream=upstream), upstream)


class Case(NamedTuple):
    """An executor, and what it has or needs."""

    open: Callable[[Path], ModelExecutor | AbstractContextManager[ModelExecutor]]
    """Opens it in a folder that is its own."""
    reads_types: bool = True
    """Whether its graph has the input `token_type_ids`."""
    needs_gpu: bool = False


EXECUTORS = {
    "dummy": Case(lambda _: DummyExecutor(dimensions=DIMENSIONS, worker_threads=2)),
    "paced": Case(
        lambda _: PacedExecutor(lambda *_: None, dimensions=DIMENSIONS, worker_threads=2)
    ),
    "simulated": Case(
        lambda _: SimulatedExecutor(dimensions=DIMENSIONS, worker_threads=2, base=0.0, token=0.0)
    ),
    "onnx": Case(
        lambda folder: OnnxExecutor(source(folder / "model.onnx", digest="d"), worker_threads=2)
    ),
    "bound": Case(bound_executor),
    "captured": Case(lambda folder: bound_executor(folder, graph_rows=2)),
    "engines": Case(engines_executor),
    "openvino": Case(openvino_executor),
    "cuda": Case(cuda_executor, needs_gpu=True),
    "upstream": Case(lambda folder: upstream_executor(folder, binary=True)),
    "upstream-json": Case(lambda folder: upstream_executor(folder, binary=False)),
}


@pytest.fixture(
    params=[
        pytest.param(case, id=name, marks=[pytest.mark.gpu] * case.needs_gpu)
        for name, case in EXECUTORS.items()
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def executor(case: Case, tmp_path: Path) -> Iterator[ModelExecutor]:
    opened = case.open(tmp_path)
    with opened if isinstance(opened, AbstractContextManager) else nullcontext(opened) as executor:
        yield executor


def padded(*rows: list[int], output: OutputKind = OutputKind.POOLED) -> PaddedBatch:
    return pad([np.array(row, dtype=np.int32) for row in rows], output)


def run(
    executor: ModelExecutor, *rows: list[int], output: OutputKind = OutputKind.POOLED
) -> FloatArray:
    return executor.run(padded(*rows, output=output))


def test_outputs_are_float32_of_the_promised_shapes(executor: ModelExecutor) -> None:
    pooled = run(executor, [2, 4, 3], [2, 3])
    tokens = run(executor, [2, 4, 3], [2, 3], output=OutputKind.TOKENS)

    assert pooled.shape == (2, DIMENSIONS)
    assert tokens.shape == (2, 3, DIMENSIONS)
    assert pooled.dtype == tokens.dtype == np.float32
    assert executor.dimensions == DIMENSIONS


def test_rows_keep_their_order(executor: ModelExecutor) -> None:
    first, second = run(executor, [2, 4, 3], [2, 5, 3])
    again, before = run(executor, [2, 5, 3], [2, 4, 3])

    assert np.array_equal(first, before)
    assert np.array_equal(second, again)
    assert not np.array_equal(first, second)


def test_mates_of_equal_shape_do_not_change_a_bit(executor: ModelExecutor) -> None:
    quiet = run(executor, [2, 4, 3], [2, 5, 3])[0]
    loud = run(executor, [2, 4, 3], [79, 79, 79])[0]

    assert np.array_equal(quiet, loud)


def test_padding_does_not_change_an_answer(executor: ModelExecutor) -> None:
    alone = run(executor, [2, 4, 3])[0]
    padded = run(executor, [2, 4, 3], [2, 6, 7, 8, 9, 3])[0]

    assert np.allclose(alone, padded, atol=1e-5)


def test_types_of_tokens_matter_to_graphs_that_read_them(
    case: Case, executor: ModelExecutor
) -> None:
    row = [2, 4, 3, 5, 3]
    types = np.array([[0, 0, 0, 1, 1]], dtype=np.int32)

    pair = executor.run(msgspec.structs.replace(padded(row), type_ids=types))

    assert np.array_equal(pair, run(executor, row)) is not case.reads_types


def test_worker_threads_may_run_side_by_side(executor: ModelExecutor) -> None:
    expected = run(executor, [2, 4, 3])
    results: list[FloatArray] = []

    def work() -> None:
        results.extend(run(executor, [2, 4, 3]) for _ in range(50))

    threads = [Thread(target=work) for _ in range(executor.worker_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 50 * executor.worker_threads
    assert all(np.array_equal(result, expected) for result in results)


def test_wide_runs_answer_the_same_bits(executor: ModelExecutor) -> None:
    batch = padded([2, 4, 3], [2, 5, 6, 3])

    wide = executor.run_wide(batch)

    assert np.array_equal(wide, executor.run(batch))


def test_packed_weights_are_kept_beside_the_graph_and_used_again(tmp_path: Path) -> None:
    kept = source(tmp_path / "model.onnx", digest="d1")

    first = OnnxExecutor(kept, worker_threads=2)
    files = sorted((tmp_path / ".prepacked").rglob("model.onnx"))
    again = OnnxExecutor(kept, worker_threads=2)

    assert len(files) == 1
    assert sorted((tmp_path / ".prepacked").rglob("model.onnx")) == files
    assert first.wide_cost is not None
    assert np.array_equal(run(first, [2, 4, 3]), run(again, [2, 4, 3]))


def test_known_costs_are_not_measured_again(tmp_path: Path) -> None:
    kept, batch = source(tmp_path / "model.onnx", digest="d1"), padded([2, 4, 3], [2, 5, 6, 3])
    first = OnnxExecutor(kept, worker_threads=2)
    costs = MeasuredCosts(cost=first.cost, wide=first.wide_cost)

    again = OnnxExecutor(msgspec.structs.replace(kept, costs=costs), worker_threads=2)
    found = [again.run_wide(batch) for _ in range(20)]

    assert (again.cost, again.wide_cost) == (first.cost, first.wide_cost)
    assert all(np.array_equal(each, first.run(batch)) for each in found)


def test_a_folder_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".prepacked").write_text("in the way")

    executor = OnnxExecutor(source(tmp_path / "model.onnx", digest="d1"), worker_threads=2)

    assert executor.wide_cost is None
    assert run(executor, [2, 4, 3]).shape == (1, DIMENSIONS)


def test_the_provider_that_runs_is_named(executor: ModelExecutor) -> None:
    assert executor.provider.endswith("ExecutionProvider")


def test_a_batch_that_cannot_be_computed_is_a_failed_model(tmp_path: Path) -> None:
    onnx = OnnxExecutor(source(tmp_path / "model.onnx"), worker_threads=1)
    beyond_the_vocabulary = [2, 5_000, 3]

    for executor, row in (
        (DummyExecutor(poison=7), [2, 7, 3]),
        (onnx, beyond_the_vocabulary),
        (bound_executor(tmp_path), beyond_the_vocabulary),
    ):
        with pytest.raises(ModelFailed):
            run(executor, row)
    assert run(onnx, [2, 4, 3]).shape == (1, DIMENSIONS)


@pytest.mark.parametrize(
    ("provider", "name"),
    [("cuda", "CUDAExecutionProvider"), ("tensorrt", "TensorrtExecutionProvider")],
)
def test_a_provider_that_is_not_there_is_refused_and_not_replaced(
    provider: Provider, name: str, tmp_path: Path
) -> None:
    if provider == "cuda" and GPU:
        pytest.skip("it is there")

    with pytest.raises(ModelProblem, match=f"`{name}`"):
        CudaExecutor(source(tmp_path / "model.onnx"), options=DeviceOptions(provider=provider))


def test_an_output_the_graph_has_not_is_named(tmp_path: Path) -> None:
    wrong = source(tmp_path / "model.onnx", outputs={OutputKind.POOLED: "cls"})

    with pytest.raises(ModelProblem, match="no output `cls`; it has pooled, tokens"):
        OnnxExecutor(wrong, worker_threads=1)


def test_another_width_than_declared_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match="8 wide, not `dimensions: 9`"):
        OnnxExecutor(source(tmp_path / "model.onnx", dimensions=9), worker_threads=1)


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    wrong = source(tmp_path / "model.onnx")
    wrong.path.write_bytes(b"no graph")

    with pytest.raises(ModelProblem, match=r"model\.onnx: ONNX Runtime cannot load"):
        OnnxExecutor(wrong, worker_threads=1)


@pytest.mark.parametrize("name", ["onnx", "bound", "openvino"])
def test_a_joined_output_is_one_line_for_all_outputs(tmp_path: Path, name: str) -> None:
    joined = joined_source(tmp_path / "model.onnx")
    executor: ModelExecutor
    if name == "onnx":
        executor = OnnxExecutor(joined, worker_threads=1)
    elif name == "bound":
        options, limits = DeviceOptions(provider="cpu"), RunLimits(runs=1)
        executor = CudaExecutor(joined, options=options, limits=limits)
    else:
        need_openvino()
        executor = OpenVinoExecutor(joined, worker_threads=1)

    together = run(executor, [2, 4, 5, 6, 3], [2, 4, 3], output=OutputKind.JOINED)
    alone = run(executor, [2, 4, 3], output=OutputKind.JOINED)[0]

    assert together.shape == (2, executor.joined.of(5))
    real = executor.joined.real(together[1], OutputKind.JOINED, 3)
    np.testing.assert_allclose(real, alone, atol=1e-5)
    np.testing.assert_allclose(alone[:DIMENSIONS], run(executor, [2, 4, 3])[0], atol=1e-5)


def joined_source(path: Path) -> GraphSource:
    """Write the toy graph with vectors of three numbers and a weight for each token."""
    model = onnx.load_from_string(toy_graph())
    heads = {"vectors": 3, "sparse": 1}
    weights = {name: {"weight": np.ones((n, DIMENSIONS), np.float32)} for name, n in heads.items()}
    add_joined(model, tokens="tokens", pooled="pooled", **weights)
    path.write_bytes(model.SerializeToString())
    outputs = {**OUTPUTS, OutputKind.JOINED: "joined"}
    joined = JoinedWidth(DIMENSIONS, 4)
    return GraphSource(path=path, outputs=outputs, dimensions=DIMENSIONS, joined=joined)
