"""Checks that a GPU can run a graph that has no form for GPUs beside it.

The graph that serves CPUs lays rows out by classes of lengths. A batch may leave a class empty, and
attention of zero rows then fails on some devices. So the graph serves a GPU only after trial
batches of every kind answered there as on a CPU.
"""

import logging
from collections.abc import Callable

import msgspec
import numpy as np

from backends.errors import BackendError, ModelProblem, StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import PaddedBatch, pad
from backends.qualification.qualify import TOLERANCES
from backends.qualification.records import machine_key, read_record, write_record
from backends.types import FloatArray

_log = logging.getLogger(__name__)
RECORD = ".fallback.json"
# Part of the record's key: other trials ask for new ones.
_METHOD = "1"
_PROVIDERS = ("cuda", "tensorrt")
# One length of each class that graphs for CPUs have; a batch of two leaves the third one empty.
LENGTHS = (3, 15, 40)
_BATCHES = ((0, 1, 2), (1, 2), (0, 2), (0, 1), (0,), (1,), (2,))


RunBatches = Callable[[GraphSource, list[PaddedBatch]], list[FloatArray]]


class FallbackTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how far a device's answers are from a CPU's, as a share of the largest value."""

    moved: float


def check_fallback(source: GraphSource, *, provider: str, run: RunBatches) -> None:
    """Log that a GPU runs a graph without a form, and try it once per digest and kind of machine.

    `run` answers batches on the device. A graph that no CPU runs has only to answer numbers.

    Raises:
        ModelProblem: a trial batch fails on the device, or its answers are not those of a CPU.
    """
    if provider not in _PROVIDERS:
        return
    _log.warning(
        "a graph has no form for this device and runs as it is, which may be slow; `sluicegate "
        "models import` writes forms",
        extra={"graph": str(source.path), "provider": provider},
    )
    path = source.path.with_name(RECORD)
    key = machine_key(_METHOD, source.digest, provider, source.profile)
    if read_record(path, key, FallbackTrial) is not None:
        return
    moved = _try(source, provider, run)
    if not moved <= TOLERANCES.get(source.profile, TOLERANCES["fp32"]):
        raise _problem(source, provider, f"its answers differ from a CPU's by {moved:.2g}")
    write_record(path, key, FallbackTrial(moved=moved))


def running(open_executor: Callable[[GraphSource], ModelExecutor]) -> RunBatches:
    """Return a function that runs batches by an executor, in this process."""

    def run(source: GraphSource, batches: list[PaddedBatch]) -> list[FloatArray]:
        executor = open_executor(source)
        return [executor.run(batch) for batch in batches]

    return run


def trial_batches(source: GraphSource) -> list[PaddedBatch]:
    """Return a batch for each output and each combination of the classes of lengths."""
    longest = source.max_tokens or max(LENGTHS)
    # Small ids, which every model has.
    rows = [1 + np.arange(min(length, longest), dtype=np.int32) for length in LENGTHS]
    return [
        pad([rows[place] for place in places], output)
        for output in source.outputs
        for places in _BATCHES
    ]


def _try(source: GraphSource, provider: str, run: RunBatches) -> float:
    """Return how far the device's answers are from a CPU's, as a share of the largest value."""
    batches = trial_batches(source)
    try:
        found = run(source, batches)
    except (BackendError, StartProblem) as error:
        raise _problem(source, provider, str(error)) from error
    alone = msgspec.structs.replace(source, digest="", profile="fp32")
    on_cpu = running(lambda each: OnnxExecutor(each, worker_threads=1, wide=False))
    try:
        expected = on_cpu(alone, batches)
    except (BackendError, StartProblem):
        expected = found
    return max(map(_moved, expected, found, batches))


def _moved(expected: FloatArray, found: FloatArray, batch: PaddedBatch) -> float:
    if expected.shape != found.shape:
        return np.inf
    real = batch.mask > 0 if expected.ndim > batch.mask.ndim else ...
    largest = float(np.abs(expected[real]).max()) or 1.0
    moved = float(np.abs(expected[real] - found[real]).max()) / largest
    return moved if np.isfinite(moved) else np.inf


def _problem(source: GraphSource, provider: str, reason: str) -> ModelProblem:
    return ModelProblem(
        f"{source.path}: it has no form for `{provider}` and cannot run there as it is: {reason}; "
        "import the model again with `sluicegate models import`, which writes forms for GPUs"
    )
