"""Chooses the precision and the file in which this machine runs a model's graph.

A device graph is used under two conditions: it has the precision in which the model runs, and its
outputs equal the outputs of the model's own graph within the tolerance of that precision. For a
GPU, graphs are timed with batches as large as the GPU gets under load.
"""

import logging
import math
from collections.abc import Callable

import msgspec
import numpy as np

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import (
    BackendError,
    ExecutorDied,
    ModelProblem,
    OutOfMemory,
    StartProblem,
)
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import OpenExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.executors.trial_shapes import (
    CPU_BATCH,
    Lengths,
    full_batches,
    text_lengths,
)
from sluicegate.backends.qualification.device_graphs import HALVES, find_device_graphs
from sluicegate.backends.qualification.fallback import check_fallback
from sluicegate.backends.qualification.graph_trials import (
    TryGraph,
    largest_difference,
    local_trials,
    run_on_cpu,
)
from sluicegate.backends.qualification.half_precision import HalfSubject, read_verdict
from sluicegate.backends.qualification.qualify import TOLERANCES
from sluicegate.backends.qualification.records import machine_key, read_record, write_record
from sluicegate.wire.gpus import GPU_PROVIDERS

_log = logging.getLogger(__name__)
RECORD = ".forms.json"
# Part of the record's key. Increase it when the way to compare changes.
_METHOD = "2"
# Row lengths of three batches that are compared: a few short rows, many usual rows, and a longest
# row. A graph groups rows by classes of lengths, and the short rows leave some classes empty.
_FEW: Lengths = (3, 12, 1, 9)
_MANY, _USUAL, _LONGEST = 24, 128, 1024
# Every model has embeddings for ids below this.
_IDS = 12


class QuickestGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `file` of the quickest graph, and the predicted seconds of each correct graph.

    The predicted seconds are for one usual batch or, on a GPU, for full batches of several lengths.
    """

    file: str
    seconds: dict[str, float]


def choose_precision(
    subject: HalfSubject,
    *,
    provider: str,
    allows_fp16: bool,
    allows_tf32: bool,
    open_executor: OpenExecutor,
    find: Callable[[GraphSource], QuickestGraph],
) -> str:
    """Return the precision in which to run a graph.

    For an fp32 graph on a GPU, the result is fp16, tf32 or fp32. Every other graph keeps its own
    precision. A graph with adapters gets no fp16, because texts judge its base model only. `find`
    takes a graph with the wanted precision, and returns the quickest graph for this precision. The
    verdict on fp16 is stored for each digest and kind of machine.

    Raises:
        ExecutorDied: the fp16 graph broke the device. The graph is not tried again.
    """
    source = subject.source
    if provider not in GPU_PROVIDERS or source.precision != "fp32":
        return source.precision
    otherwise = "tf32" if allows_tf32 else "fp32"
    if not allows_fp16 or getattr(subject.manifest, "adapters", None):
        return otherwise
    if provider != "tensorrt" and not find_device_graphs(
        source.path, provider=provider, precision="fp16"
    ):
        return otherwise
    half, other = (
        msgspec.structs.replace(source, precision=precision) for precision in ("fp16", otherwise)
    )
    try:
        quickest = find(half)
        if provider == "cuda" and not _is_quicker(quickest, other, find=find):
            _log.info("fp16 is not quicker", extra={"model": str(subject.folder)})
            return otherwise
        verdict = read_verdict(subject, quickest.file, provider, open_executor=open_executor)
    except ExecutorDied:
        raise
    except (BackendError, StartProblem) as error:
        # Memory may have been short, or a process was killed. The next start judges again.
        _log.warning(
            "fp16 could not be judged", extra={"model": str(subject.folder), "why": str(error)}
        )
        return otherwise
    return otherwise if verdict.reasons else "fp16"


def _is_quicker(
    half: QuickestGraph, other: GraphSource, *, find: Callable[[GraphSource], QuickestGraph]
) -> bool:
    """Return whether the fp16 graph runs on this device, and is quicker than in precision `other`.

    TensorRT needs no comparison, because its fp16 engine keeps layers that are quicker in fp32.
    """
    if half.file == other.path.name:
        return False
    try:
        found = find(other)
    except ModelProblem:
        return True
    return half.seconds[half.file] < found.seconds.get(found.file, math.inf)


def record_name(precision: str) -> str:
    """Return the file name of the measurements for a precision; fp32 and TF32 share a file."""
    return f".forms-{precision}.json" if precision in HALVES else RECORD


def find_quickest(
    source: GraphSource,
    *,
    provider: str,
    open_executor: OpenExecutor,
    bounds: BatchBounds | None = None,
    try_graph: TryGraph | None = None,
) -> QuickestGraph:
    """Return the quickest graph of `source`.

    The graph has the precision of `source`, and batches are within `bounds`. Without `try_graph`,
    graphs are tried in this process.

    The measurements are recorded for each kind of machine, and repeated if the digest of `source`
    changes. If a graph ran out of memory, they are not recorded, because memory may suffice at the
    next start.

    Raises:
        ModelProblem: neither the graph nor a device graph runs correctly on this device.
    """
    folder, precision, bounds = source.path.parent, source.precision, bounds or BatchBounds()
    own = QuickestGraph(file=source.path.name, seconds={})
    trial = try_graph or local_trials(open_executor)
    names = find_device_graphs(source.path, provider=provider, precision=precision)
    if not names:
        check_fallback(source, provider=provider, try_graph=trial)
        return own
    sizes = f"{bounds.rows} x {bounds.tokens}"
    key = machine_key(_METHOD, sizes, source.digest, provider, precision, *names)
    record = folder / record_name(precision)
    found = read_record(record, key, QuickestGraph)
    if found is None:
        loads = (
            full_batches(bounds, source.max_tokens) if provider in GPU_PROVIDERS else [CPU_BATCH]
        )
        found, had_memory = _measure(source, names, loads, trial)
        if had_memory:
            write_record(record, key, found)
    return found


def _measure(
    source: GraphSource, names: list[str], loads: list[Lengths], try_graph: TryGraph
) -> tuple[QuickestGraph, bool]:
    """Return the quickest graph, and whether every graph had enough memory for its trial."""
    tolerance = TOLERANCES.get(source.precision, TOLERANCES["fp32"])
    batches = _batches(source)
    expected = run_on_cpu(source, batches)
    seconds: dict[str, float] = {}
    had_memory = True
    problem = ModelProblem(f"{source.path}: the outputs differ from those on a CPU")
    for name in (source.path.name, *names):
        path = source.path.with_name(name)
        try:
            tried = try_graph(msgspec.structs.replace(source, path=path), batches)
        except (BackendError, StartProblem) as error:
            _log.info("a device graph cannot run here", extra={"graph": name, "why": str(error)})
            had_memory &= not isinstance(error, OutOfMemory)
            if path == source.path:
                problem = _cannot_run(source, error)
            continue
        if expected is None and path == source.path:
            expected = tried.outputs
        moved = largest_difference(expected, tried.outputs, batches) if expected else np.inf
        if moved <= tolerance:
            seconds[name] = _predict(tried.cost, loads)
        else:
            _log.warning("a device graph has wrong outputs", extra={"graph": name, "moved": moved})
    if not seconds:
        raise problem
    return QuickestGraph(file=min(seconds, key=seconds.__getitem__), seconds=seconds), had_memory


def _cannot_run(source: GraphSource, error: Exception) -> ModelProblem:
    if isinstance(error, ModelProblem):
        return error
    return ModelProblem(f"{source.path}: the graph cannot run on this device: {error}")


def _batches(source: GraphSource) -> list[PaddedBatch]:
    """Return the batches with which graphs are compared, for each output.

    The batches' token ids are so low that every model has embeddings for them.
    """
    longest = min(source.max_tokens or _USUAL, _LONGEST)
    usual = text_lengths(_MANY, min(longest, _USUAL))
    shapes = [[min(length, longest) for length in _FEW], usual, [longest, 1]]
    return [
        pad([1 + np.arange(length, dtype=np.int32) % _IDS for length in lengths], output)
        for output in source.outputs
        for lengths in shapes
    ]


def _predict(cost: CostModel, loads: list[Lengths]) -> float:
    return sum(
        cost.seconds(rows=len(lengths), longest=max(lengths), tokens=sum(lengths))
        for lengths in loads
    )
