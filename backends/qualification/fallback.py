"""Checks that a GPU can run a graph that has no form for GPUs beside it.

The graph that serves CPUs lays rows out by classes of lengths. A batch may leave a class empty, and
attention of zero rows then fails on some devices. So the graph serves a GPU only after trial
batches of every kind answered there as on a CPU.
"""

import logging
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from backends.errors import BackendError, ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import PaddedBatch, pad
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


class FallbackTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how far a device's answers are from a CPU's, as a share of the largest value."""

    moved: float


def check_fallback(
    source: GraphSource,
    *,
    provider: str,
    profile: str,
    tolerance: float,
    open_executor: Callable[[GraphSource], ModelExecutor],
) -> None:
    """Log that a GPU runs a graph without a form, and try it once per digest and kind of machine.

    Raises:
        ModelProblem: a trial batch fails on the device, or its answers are not those of a CPU.
    """
    if provider not in _PROVIDERS:
        return
    _log.warning(
        "a graph has no form for this GPU and runs as it is, which is slower; `sluicegate models "
        "import` writes forms",
        extra={"graph": str(source.path), "provider": provider},
    )
    path, key = (
        source.path.with_name(RECORD),
        machine_key(_METHOD, source.digest, provider, profile),
    )
    found = read_record(path, key, FallbackTrial)
    if found is None:
        found = _try(source, provider, open_executor)
        if not found.moved <= tolerance:
            raise _problem(
                source, provider, f"its answers differ from a CPU's by {found.moved:.2g}"
            )
        write_record(path, key, found)


def trial_batches(source: GraphSource) -> Iterator[PaddedBatch]:
    """Yield batches that leave each class of lengths empty in turn, for each output."""
    longest = source.max_tokens or max(LENGTHS)
    # Small ids, which every model has.
    rows = [1 + np.arange(min(length, longest), dtype=np.int32) for length in LENGTHS]
    for output in source.outputs:
        for places in _BATCHES:
            yield pad([rows[place] for place in places], output)


def _try(
    source: GraphSource, provider: str, open_executor: Callable[[GraphSource], ModelExecutor]
) -> FallbackTrial:
    alone = msgspec.structs.replace(source, digest="", profile="fp32")
    reference = OnnxExecutor(alone, worker_threads=1, wide=False)
    try:
        executor = open_executor(source)
        moved = [
            _moved(reference.run(batch), executor.run(batch), batch)
            for batch in trial_batches(source)
        ]
    except (BackendError, ModelProblem) as error:
        raise _problem(source, provider, str(error)) from error
    return FallbackTrial(moved=max(moved))


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
