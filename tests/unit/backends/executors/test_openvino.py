"""OpenVINO runs the graphs of every other backend, answers alike, and reports itself to nobody."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.executors.openvino import OpenVinoExecutor
from sluicegate.backends.executors.openvino_graph import check_precision, compile_graph
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.qualification.invariance import measure_invariance
from sluicegate.backends.qualification.qualify import TOLERANCES
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.types import IntArray, OutputKind
from testing.bert import pooled_bert, seeded_weights
from tests.support.openvino import need_bf16_of_the_cpu, need_openvino

SHAPE = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=50, positions=24)
OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
ATTENTION: tuple[Attention, ...] = ("fused", "heads", "ranges", "gathered")


@pytest.fixture(scope="module", params=ATTENTION)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GraphSource:
    """A small encoder with each kind of attention that a CPU runs."""
    return write(tmp_path_factory.mktemp("graph") / "model.onnx", request.param)


@pytest.fixture(scope="module")
def exact(graph: GraphSource) -> OpenVinoExecutor:
    """It compiled in fp32."""
    need_openvino()
    return OpenVinoExecutor(graph, worker_threads=1)


@pytest.fixture(scope="module")
def rounded(graph: GraphSource) -> OpenVinoExecutor:
    """It compiled in bf16."""
    need_bf16_of_the_cpu()
    return OpenVinoExecutor(msgspec.structs.replace(graph, precision="bf16"), worker_threads=1)


def write(path: Path, attention: Attention = "gathered") -> GraphSource:
    model = pooled_bert(SHAPE, seeded_weights(SHAPE, seed=3), GraphOptions(attention=attention))
    path.write_bytes(model.SerializeToString())
    return GraphSource(path=path, outputs=OUTPUTS, dimensions=SHAPE.hidden, max_tokens=24)


def batch(*lengths: int, output: OutputKind = OutputKind.POOLED) -> PaddedBatch:
    random = np.random.default_rng(5)
    padded = pad([random.integers(1, 50, size, dtype=np.int32) for size in lengths], output)
    types = random.integers(0, 2, padded.ids.shape, dtype=np.int32) * padded.mask
    return msgspec.structs.replace(padded, type_ids=types)


def test_answers_equal_those_of_onnx_runtime(graph: GraphSource, exact: OpenVinoExecutor) -> None:
    theirs = OnnxExecutor(graph, worker_threads=1)
    lengths = (3, 24, 1, 9)

    for output in OUTPUTS:
        found = exact.run(batch(*lengths, output=output))
        expected = theirs.run(batch(*lengths, output=output))
        if output is OutputKind.TOKENS:
            # Of no meaning at padding.
            found, expected = (
                np.concatenate([row[:length] for row, length in zip(each, lengths, strict=True)])
                for each in (found, expected)
            )

        assert np.abs(found - expected).max() < 1e-5


def test_bf16_is_near_and_is_not_fp32(exact: OpenVinoExecutor, rounded: OpenVinoExecutor) -> None:
    rows = batch(3, 24, 1, 9)

    expected, found = exact.run(rows), rounded.run(rows)

    cosines = (expected * found).sum(axis=1)
    cosines /= np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    assert cosines.min() > 0.999
    assert not np.array_equal(expected, found)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_rows_change_no_bit(
    exact: OpenVinoExecutor, rounded: OpenVinoExecutor, precision: str
) -> None:
    executor = exact if precision == "fp32" else rounded

    def encode(texts: Sequence[str]) -> list[IntArray]:
        return [np.array([2, *(ord(c) % 50 for c in text[:20]), 3], np.int32) for text in texts]

    measured = measure_invariance(executor, outputs=OUTPUTS, encode=encode, max_tokens=24)

    assert measured.shares_batches
    assert measured.shapes <= TOLERANCES[precision]


def test_runs_have_a_stream_of_one_thread_each(tmp_path: Path) -> None:
    need_openvino()

    compiled = compile_graph(write(tmp_path / "model.onnx"), threads=2).model

    assert compiled.get_property("NUM_STREAMS") == 2
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 2
    assert compiled.get_property("ENABLE_CPU_PINNING") is False
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"


def test_an_id_beyond_the_embeddings_is_a_failed_batch(exact: OpenVinoExecutor) -> None:
    """OpenVINO would look up zeros, and say nothing."""
    with pytest.raises(ModelFailed, match="token id"):
        exact.run(pad([np.array([2, 50, 3], dtype=np.int32)], OutputKind.POOLED))


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    need_openvino()
    source = write(tmp_path / "model.onnx")
    source.path.write_bytes(b"no graph")

    with pytest.raises(ModelProblem, match=r"model\.onnx: OpenVINO .*\w"):
        OpenVinoExecutor(source, worker_threads=1)


def test_bf16_is_refused_on_a_cpu_without_it(tmp_path: Path) -> None:
    source = GraphSource(path=Path("model.onnx"), outputs=OUTPUTS, dimensions=8, precision="bf16")
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")

    with pytest.raises(ModelProblem, match="`profile: bf16` needs a CPU with `avx512_bf16`"):
        check_precision(source, cpu_info)
    check_precision(msgspec.structs.replace(source, precision="fp32"), cpu_info)
    cpu_info.write_text("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n")
    check_precision(source, cpu_info)


def test_bf16_is_refused_where_onnx_runtime_would_run_it_in_fp32(tmp_path: Path) -> None:
    source = msgspec.structs.replace(write(tmp_path / "model.onnx"), precision="bf16")

    with pytest.raises(ModelProblem, match="`SLUICEGATE_BACKEND_PROVIDER` to `openvino`"):
        executor_opener(BackendSettings(provider="cpu"))(source)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(ModelProblem, match=r"openvino\]"):
        executor_opener(BackendSettings(provider="openvino"))(write(tmp_path / "model.onnx"))


def test_nothing_is_reported_where_the_package_that_reports_is_installed(tmp_path: Path) -> None:
    """OpenVINO's import sends an event through `openvino_telemetry`."""
    need_openvino()
    package = tmp_path / "openvino_telemetry"
    package.mkdir()
    (package / "__init__.py").write_text("print('reporting')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from sluicegate.backends.executors.openvino_graph import runtime\n"
        "runtime(); print(sys.modules['openvino'].__name__)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "openvino\n"
