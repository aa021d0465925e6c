"""An import writes graphs for other devices, and a backend serves the quickest correct one.

The tests open the graphs on the CPU, which has kernels for some of them.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import yaml
from onnx import numpy_helper

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import ModelFailed, ModelProblem, OutOfMemory, StartProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.model_tools.tuning.publish import publish
from sluicegate.backends.model_tools.tuning.tuned_model import TunedModel, find_tuned_model
from sluicegate.backends.model_tools.tuning.variant_gate import VariantGate
from sluicegate.backends.model_tools.tuning.variant_maker import VariantMaker
from sluicegate.backends.qualification.gate import Bounds
from sluicegate.backends.qualification.golden_texts import GoldenSet
from sluicegate.backends.qualification.graph_choice import (
    RECORD,
    QuickestGraph,
    find_quickest,
    record_name,
)
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.types import FloatArray, OutputKind
from tests.parity.checkpoints import Checkpoint, Family, Purpose, write_checkpoint
from tests.parity.served import write_models
from tests.parity.texts import read_texts

OWN, HEADS, PLAIN = "model.onnx", "model.cuda-heads.onnx", "model.any-plain.onnx"
HEADS_HALF = "model.cuda-heads-fp16.onnx"
MANY = Checkpoint(family="bert", purpose="many")
PADDED = ["heads", "heads-bf16", "heads-fp16", "ranges", "ranges-bf16", "ranges-fp16"]


def written(tmp_path: Path, family: Family = "bert", purpose: Purpose = "text") -> Path:
    source = write_checkpoint(Checkpoint(family=family, purpose=purpose), tmp_path / "source")
    convert(source, tmp_path / "model")
    return tmp_path / "model"


def graph_source(folder: Path) -> GraphSource:
    outputs = {OutputKind.POOLED: "logits"}
    return GraphSource(
        path=folder / OWN, outputs=outputs, dimensions=3, max_tokens=64, digest="one"
    )


class Opening:
    """Opens graphs on the CPU. A batch of each graph seems to take the given seconds.

    Like a device, it refuses graphs for which it `lacks` kernels.
    """

    def __init__(self, *lacks: str, **seconds: float) -> None:
        self.lacks = lacks
        self.seconds = {f"model.cuda-{kind}.onnx": value for kind, value in seconds.items()}
        self.opened: list[str] = []

    def __call__(self, source: GraphSource) -> ModelExecutor:
        self.opened.append(source.path.name)
        if source.path.name in self.lacks:
            raise ModelProblem(f"{source.path}: no kernel")
        executor = OnnxExecutor(msgspec.structs.replace(source, digest=""), worker_threads=1)
        base = self.seconds.get(source.path.name, 1.0)
        executor.cost = CostModel(base=base, padded=0.0, square=0.0)
        return executor


def choose(
    folder: Path,
    opening: Callable[[GraphSource], ModelExecutor],
    *,
    provider: str = "cuda",
    precision: str = "fp32",
    bounds: BatchBounds | None = None,
) -> str:
    source = msgspec.structs.replace(graph_source(folder), precision=precision)
    found = find_quickest(source, provider=provider, open_executor=opening, bounds=bounds)
    opening(msgspec.structs.replace(source, path=folder / found.file))
    document = msgspec.json.decode((folder / record_name(precision)).read_bytes())
    assert found == msgspec.convert(document["measured"], QuickestGraph)
    return found.file


@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "distilbert", "electra", "albert", "mpnet", "deberta", "modernbert"],
)
def test_device_graphs_give_the_results_of_their_graph(tmp_path: Path, family: Family) -> None:
    """The CPU has no packed kernel, and it reads ranges differently than CUDA."""
    folder = written(tmp_path, family)
    source = graph_source(folder)
    batch = pad([np.arange(5, 5 + n, dtype=np.int32) for n in (3, 12, 1, 9)], OutputKind.POOLED)

    own = OnnxExecutor(msgspec.structs.replace(source, digest=""), worker_threads=1).run(batch)
    other = msgspec.structs.replace(source, path=folder / HEADS, digest="")
    found = OnnxExecutor(other, worker_threads=1).run(batch)

    np.testing.assert_allclose(found, own, atol=1e-5)
    lacking = "bf16" if family in {"deberta", "modernbert"} else "none"
    kinds = [kind for kind in (*PADDED, "packed", "packed-fp16") if lacking not in kind]
    fused = [f"model.cuda-{kind}.onnx" for kind in kinds]
    assert {path.name for path in folder.glob("*.onnx")} == {OWN, PLAIN, *fused}
    for name in fused:
        assert (folder / name).stat().st_size < (folder / OWN).stat().st_size / 4


@pytest.mark.parametrize("purpose", ["text", "tokens"])
@pytest.mark.parametrize(
    "family",
    ["bert", "mpnet", "electra", "albert", "deberta", "modernbert"],
)
def test_plain_graphs_have_operators_of_onnx_only(
    tmp_path: Path, family: Family, purpose: Purpose
) -> None:
    """TensorRT supports no other operators, and no sizes that depend on the values of a mask."""
    folder = written(tmp_path, family, purpose)
    outputs = {OutputKind.TOKENS if purpose == "tokens" else OutputKind.POOLED: "logits"}
    labels = Checkpoint(family=family, purpose=purpose).labels
    source = msgspec.structs.replace(
        graph_source(folder), outputs=outputs, dimensions=len(labels), digest=""
    )
    rows = [np.arange(5, 5 + n, dtype=np.int32) for n in (3, 12, 1, 40)]
    batch = pad(rows, source.first_output)

    own, found = (
        OnnxExecutor(msgspec.structs.replace(source, path=folder / name), worker_threads=1).run(
            batch
        )
        for name in (OWN, PLAIN)
    )

    if purpose == "tokens":
        own, found = own[batch.mask > 0], found[batch.mask > 0]
    np.testing.assert_allclose(found, own, atol=3e-5)
    nodes = onnx.load(str(folder / PLAIN), load_external_data=False).graph.node
    assert {node.domain for node in nodes} == {""}
    assert not {"NonZero", "GatherND"} & {node.op_type for node in nodes}


def test_weights_are_cast_to_half_precision_when_a_graph_is_loaded(tmp_path: Path) -> None:
    """A cast in every batch would be slower than fp32."""
    folder = written(tmp_path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    batch = pad([np.arange(5, 5 + n, dtype=np.int32) for n in (3, 12, 1)], OutputKind.POOLED)
    source = msgspec.structs.replace(graph_source(folder), digest="")
    half = msgspec.structs.replace(source, path=folder / HEADS_HALF)

    own, found = (OnnxExecutor(each, worker_threads=1).run(batch) for each in (source, half))
    onnxruntime.InferenceSession(str(half.path), options, providers=["CPUExecutionProvider"])

    np.testing.assert_allclose(found, own, rtol=1e-2, atol=1e-2)
    assert not np.array_equal(found, own)
    before, after = (
        {
            name
            for node in onnx.load(str(file), load_external_data=False).graph.node
            for name in node.output
            if name.endswith("weight.fp16")
        }
        for file in (half.path, tmp_path / "loaded.onnx")
    )
    # Others come from the CPU, which computes in fp32.
    assert before
    assert not before & after


def test_graphs_of_an_encoder_end_in_the_same_modules(tmp_path: Path) -> None:
    """The last module scales vectors to length one."""
    source = write_checkpoint(Checkpoint(family="bert", purpose="embed"), tmp_path / "source")
    convert(source, tmp_path / "model")
    outputs = {OutputKind.POOLED: "pooled"}
    graph = GraphSource(path=tmp_path / "model" / OWN, outputs=outputs, dimensions=32)
    other = msgspec.structs.replace(graph, path=tmp_path / "model" / HEADS)
    batch = pad([np.arange(5, 5 + n, dtype=np.int32) for n in (3, 12, 1)], OutputKind.POOLED)

    own, found = (OnnxExecutor(each, worker_threads=1).run(batch) for each in (graph, other))

    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(found, own, atol=1e-5)


def test_the_quickest_graph_that_runs_is_chosen_and_recorded(tmp_path: Path) -> None:
    folder = written(tmp_path)
    first, later = Opening(heads=0.5, packed=0.1), Opening()

    assert choose(folder, first) == HEADS  # the CPU cannot run the quicker graphs
    assert choose(folder, later) == HEADS
    assert later.opened == [HEADS]


def test_a_graph_that_found_no_memory_is_tried_at_the_next_start(tmp_path: Path) -> None:
    """Another process had the memory. The backend must not keep the slower graph."""
    folder = written(tmp_path)
    opening = Opening(heads=0.5, ranges=2.0)

    def without_memory(source: GraphSource) -> ModelExecutor:
        if source.path.name == HEADS:
            raise OutOfMemory("the device is out of memory for this model")
        return opening(source)

    source = graph_source(folder)
    found = find_quickest(source, provider="cuda", open_executor=without_memory)

    assert (found.file, (folder / RECORD).exists()) == (OWN, False)
    assert choose(folder, opening) == HEADS


def test_measurements_in_half_precision_keep_the_record_of_fp32(tmp_path: Path) -> None:
    """A backend reads both records at each start."""
    folder = written(tmp_path)
    opening = Opening(**{"heads-fp16": 0.1, "heads": 0.5})
    for precision in ("fp16", "fp32"):
        choose(folder, opening, precision=precision)
    opening.opened.clear()

    for precision in ("fp16", "fp32"):
        choose(folder, opening, precision=precision)

    assert opening.opened == [HEADS_HALF, HEADS]


def test_a_graph_for_cpus_with_wrong_outputs_is_not_chosen(tmp_path: Path) -> None:
    """On a device, its attention over zero rows may be wrong."""
    folder = written(tmp_path)
    opening = Opening(heads=2.0, ranges=3.0)

    def open_executor(source: GraphSource) -> ModelExecutor:
        executor = opening(source)
        run = executor.run
        if source.path.name == OWN:
            executor.run = lambda batch: 0 * run(batch)  # type: ignore[method-assign]
        return executor

    assert choose(folder, open_executor) == HEADS

    (folder / RECORD).unlink()
    for path in folder.glob("*.cuda-*.onnx"):
        path.write_bytes(b"")
    with pytest.raises(ModelProblem, match=r"model\.onnx: the outputs differ from"):
        choose(folder, open_executor)


def test_the_graph_itself_stays_where_no_graph_is_quicker(tmp_path: Path) -> None:
    folder = written(tmp_path)

    assert choose(folder, Opening(heads=2.0, ranges=2.0)) == OWN


@pytest.mark.parametrize(("provider", "rows"), [("cuda", 1), ("cuda", 256), ("tensorrt", 256)])
def test_graphs_are_compared_at_the_size_of_the_devices_batches(
    tmp_path: Path, provider: str, rows: int
) -> None:
    """The graph for CPUs starts faster, but needs more time for each token."""
    folder = written(tmp_path)

    def open_executor(source: GraphSource) -> ModelExecutor:
        executor = Opening()(source)
        slow = CostModel(base=0.1, padded=1e-4, square=0.0)
        steady = CostModel(base=1.0, padded=0.0, square=0.0)
        executor.cost = slow if source.path.name == OWN else steady
        return executor

    bounds = BatchBounds(rows=rows, tokens=128 * rows)
    chosen = choose(folder, open_executor, provider=provider, bounds=bounds)

    assert (chosen == OWN) == (rows == 1)


def test_graphs_are_compared_anew_for_batches_of_another_size(tmp_path: Path) -> None:
    folder = written(tmp_path)
    choose(folder, Opening(heads=0.5), bounds=BatchBounds(rows=256, tokens=32_768))
    later = Opening(heads=0.5)

    choose(folder, later, bounds=BatchBounds(rows=256, tokens=16_384))

    assert later.opened[0] == OWN


def test_a_graph_is_compared_by_long_rows_and_many(tmp_path: Path) -> None:
    """Each batch lacks some classes of lengths, and one row has the longest length."""
    folder = written(tmp_path)
    sizes: set[tuple[int, int]] = set()

    def open_executor(source: GraphSource) -> ModelExecutor:
        executor = Opening()(source)
        run = executor.run

        def note(batch: PaddedBatch) -> FloatArray:
            sizes.add((len(batch.ids), int(batch.mask.sum(axis=1).max())))
            return run(batch)

        executor.run = note  # type: ignore[method-assign]
        return executor

    choose(folder, open_executor)

    assert sizes == {(4, 12), (24, 64), (2, 64)}


def test_a_graph_with_wrong_outputs_is_not_chosen(tmp_path: Path) -> None:
    folder = written(tmp_path)
    model = onnx.load(str(folder / HEADS))
    name = "classifier.bias"
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, name))
    (folder / HEADS).write_bytes(model.SerializeToString())

    assert choose(folder, Opening(heads=0.5, ranges=2.0)) == OWN


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_model_in_half_precision_runs_in_a_graph_of_that_precision(
    tmp_path: Path, precision: str
) -> None:
    folder = written(tmp_path)
    opening = Opening(**{"heads-fp16": 0.1, "heads-bf16": 0.1, "heads": 0.01})
    stand_in_for_bf16(folder)

    assert choose(folder, opening, precision=precision) == f"model.cuda-heads-{precision}.onnx"

    others = {name for name in opening.opened if name != OWN and precision not in name}
    assert not others


def stand_in_for_bf16(folder: Path) -> None:
    """Replace the bf16 graph by the fp16 graph, because the CPU has no kernel in bf16."""
    (folder / "model.cuda-heads-bf16.onnx").write_bytes((folder / HEADS_HALF).read_bytes())


def test_a_model_in_fp32_never_runs_in_half_precision(tmp_path: Path) -> None:
    folder = written(tmp_path)
    opening = Opening(**{"heads-fp16": 0.01, "heads": 0.5})

    assert choose(folder, opening) == HEADS
    assert not any("16" in name for name in opening.opened)


@pytest.mark.parametrize("provider", ["tensorrt", "openvino"])
def test_runtimes_that_compile_choose_the_plain_graph(tmp_path: Path, provider: str) -> None:
    """Without kernels for the graph itself, outputs are compared with those on a CPU."""
    folder = written(tmp_path)
    opening = Opening(OWN)

    assert choose(folder, opening, provider=provider, precision="fp16") == PLAIN
    assert opening.opened == [OWN, PLAIN, PLAIN]


def test_a_graph_that_opens_and_cannot_run_is_compared_on_a_cpu(tmp_path: Path) -> None:
    """Some missing kernels show only when the graph runs."""
    folder = written(tmp_path)
    opening = Opening()

    def open_executor(source: GraphSource) -> ModelExecutor:
        executor = opening(source)
        if source.path.name == OWN:
            executor.run = fail  # type: ignore[method-assign, assignment]
        return executor

    def fail(_: PaddedBatch) -> FloatArray:
        raise ModelFailed("no kernel")

    assert choose(folder, open_executor, provider="tensorrt", precision="fp16") == PLAIN

    (folder / record_name("fp16")).unlink()
    (folder / PLAIN).write_bytes(b"")
    with pytest.raises(ModelProblem, match=r"model\.onnx: .*: no kernel"):
        choose(folder, open_executor, provider="tensorrt", precision="fp16")


def test_without_a_correct_graph_the_error_names_the_reason(tmp_path: Path) -> None:
    folder = written(tmp_path)

    with pytest.raises(ModelProblem, match=r"model\.onnx: no kernel"):
        choose(folder, Opening(OWN, PLAIN), provider="tensorrt")


def on_cuda(tmp_path: Path, opening: Opening) -> TunedModel:
    """Return a classifier as `models tune` finds it on a backend with a fake device."""
    models = write_models(tmp_path / "models", [MANY])
    subject = find_tuned_model(read_catalogue(models), MANY.name, BackendSettings(models=models))
    return msgspec.structs.replace(subject, provider="cuda", open_executor=opening)


def variant_gate(subject: TunedModel) -> tuple[VariantMaker, VariantGate]:
    bounds = Bounds(flips=1.0, accuracy_loss=1.0)
    texts = GoldenSet(texts=list(read_texts()[:20]))
    gate = VariantGate(subject, texts, bounds=bounds, min_speedup=0.0)
    return VariantMaker(subject, bounds=bounds, echo=print), gate


def test_the_gate_judges_the_quickest_graph_and_publishes_all(
    tmp_path: Path,
) -> None:
    opening = Opening(**{"heads-fp16": 0.1})
    subject = on_cuda(tmp_path, opening)
    work, gate = variant_gate(subject)

    graph, report = work.make("fp16", gate, calibrate=None)
    (folder,) = publish(tmp_path / "models", subject, graph, report)

    assert opening.opened[-1] == HEADS_HALF
    assert report.verdict.logit_worst > 1e-4
    assert yaml.safe_load((folder / "model.yaml").read_bytes())["profile"] == "fp16"
    files = [
        {each.name for each in place.glob("*.onnx")}
        for place in (subject.graph_model.folder, folder)
    ]
    assert files[0] == files[1]
    assert len(files[0]) > len(PADDED)


def test_a_precision_that_no_graph_has_is_refused(tmp_path: Path) -> None:
    """The CPU has no kernel in bf16."""
    work, gate = variant_gate(on_cuda(tmp_path, Opening()))

    with pytest.raises(StartProblem, match="no graph in bf16 that runs here; import the model"):
        work.make("bf16", gate, calibrate=None)


def test_other_providers_run_the_graph_itself(tmp_path: Path) -> None:
    folder = written(tmp_path)
    opening = Opening()

    found = find_quickest(graph_source(folder), provider="cpu", open_executor=opening)

    assert (found.file, opening.opened) == (OWN, [])
    assert not (folder / RECORD).exists()
