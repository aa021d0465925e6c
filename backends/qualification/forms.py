"""Opens the form of a model's graph that is quickest on this device, of those beside it.

Forms are files named by what they suit: beside `model.onnx` lie `model.cuda-heads.onnx`, the same
in half precision as `model.cuda-heads-fp16.onnx`, and `model.any-plain.onnx` for runtimes that
compile a graph. One is taken only if it has the precision that the model runs in and answers as
`model.onnx` does, within what that precision explains. Forms for GPUs are compared by batches of
the size that a GPU is given.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from backends.device_defaults import BatchBounds
from backends.errors import BackendError, ModelProblem, OutOfMemory, StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import PaddedBatch, pad
from backends.executors.trial_shapes import CPU_BATCH, Lengths, full_batches, text_lengths
from backends.gpus import GPU_PROVIDERS
from backends.qualification.fallback import check_fallback
from backends.qualification.form_trials import TryForm, trying
from backends.qualification.qualify import TOLERANCES
from backends.qualification.records import machine_key, read_record, write_record
from backends.types import FloatArray, IntArray

_log = logging.getLogger(__name__)
RECORD = ".forms.json"
FORM_FILES = "*.*-*.onnx"
Device = Literal["cuda", "any"]
# The forms that suit a provider; those for any device are rounded by the runtime itself.
_SUITED: Mapping[str, Device] = MappingProxyType(
    {"cuda": "cuda", "tensorrt": "any", "openvino": "any"}
)
_HALVES = ("fp16", "bf16")
# Part of the record's key: another way to compare asks for new measurements.
_METHOD = "2"
# Lengths of the rows that are compared: a few short ones, as many as a small batch of a GPU has,
# with classes of lengths that are empty, and the longest.
_FEW: Lengths = (3, 12, 1, 9)
_MANY, _USUAL, _LONGEST = 24, 128, 1024
# Every model has vectors of so many tokens.
_IDS = 12


class QuickestForm(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `file` that is quickest here, and for those that agreed the predicted seconds.

    They are of a batch as callers make it, on a GPU of full batches of several lengths.
    """

    file: str
    seconds: dict[str, float]


def form_name(graph: Path, device: Device, attention: str, precision: str = "fp32") -> str:
    """Return the file name of a form of `graph`."""
    suffix = f"-{precision}" if precision in _HALVES else ""
    return f"{graph.stem}.{device}-{attention}{suffix}.onnx"


def form_record(profile: str) -> str:
    """Return the file name of what was measured in a precision; fp32 and TF32 share one."""
    return f".forms-{profile}.json" if profile in _HALVES else RECORD


def find_forms(graph: Path, *, provider: str, profile: str) -> list[str]:
    """Return the file names of the forms beside `graph` that suit a provider and a precision."""
    device = _SUITED.get(provider)
    names = sorted(path.name for path in graph.parent.glob(f"{graph.stem}.{device}-*.onnx"))
    if device == "any":
        return names
    wanted = profile if profile in _HALVES else ""
    halves = tuple(f"-{precision}.onnx" for precision in _HALVES)
    if wanted:
        return [name for name in names if name.endswith(f"-{wanted}.onnx")]
    return [name for name in names if not name.endswith(halves)]


def find_quickest(
    source: GraphSource,
    *,
    provider: str,
    open_executor: Callable[[GraphSource], ModelExecutor],
    bounds: BatchBounds | None = None,
    try_form: TryForm | None = None,
) -> QuickestForm:
    """Return the quickest form beside `source`, measured once per digest and kind of machine.

    It is quickest at batches within `bounds`, in the precision of `source`. What was measured is
    not kept where a form found no memory: it may find some at the next start. By default forms are
    tried in this process.

    Raises:
        ModelProblem: no form, nor the graph itself, answers on this device.
    """
    folder, profile, bounds = source.path.parent, source.profile, bounds or BatchBounds()
    own = QuickestForm(file=source.path.name, seconds={})
    if source.upstream is not None:
        return own
    trial = try_form or trying(open_executor)
    names = find_forms(source.path, provider=provider, profile=profile)
    if not names:
        check_fallback(
            source, provider=provider, run=lambda each, batches: trial(each, batches).outputs
        )
        return own
    sizes = f"{bounds.rows} x {bounds.tokens}"
    key = machine_key(_METHOD, sizes, source.digest, provider, profile, *names)
    record = folder / form_record(profile)
    found = read_record(record, key, QuickestForm)
    if found is None:
        loads = (
            full_batches(bounds, source.max_tokens) if provider in GPU_PROVIDERS else [CPU_BATCH]
        )
        found, had_memory = _measure(source, names, loads, trial)
        if had_memory:
            write_record(record, key, found)
    return found


def _measure(
    source: GraphSource, names: list[str], loads: list[Lengths], try_form: TryForm
) -> tuple[QuickestForm, bool]:
    """Return the quickest form, and whether all had the memory to be tried."""
    tolerance = TOLERANCES.get(source.profile, TOLERANCES["fp32"])
    batches = _batches(source)
    expected = _run_on_cpu(source, batches)
    seconds: dict[str, float] = {}
    had_memory = True
    problem = ModelProblem(f"{source.path}: it answers otherwise here than on a CPU")
    for name in (source.path.name, *names):
        path = source.path.with_name(name)
        try:
            form = try_form(msgspec.structs.replace(source, path=path), batches)
        except (BackendError, StartProblem) as error:
            _log.info("a form of a graph cannot run here", extra={"form": name, "why": str(error)})
            had_memory &= not isinstance(error, OutOfMemory)
            if path == source.path:
                problem = _cannot_run(source, error)
            continue
        if expected is None and path == source.path:
            expected = form.outputs
        moved = _moved(expected, form.outputs, batches)
        if moved <= tolerance:
            seconds[name] = _predict(form.cost, loads)
        else:
            _log.warning(
                "a form of a graph answers otherwise", extra={"form": name, "moved": moved}
            )
    if not seconds:
        raise problem
    return QuickestForm(file=min(seconds, key=seconds.__getitem__), seconds=seconds), had_memory


def _run_on_cpu(source: GraphSource, batches: list[PaddedBatch]) -> list[FloatArray] | None:
    """Run what forms are compared with: the graph on a CPU, which may lack kernels for it.

    A device is no reference: a graph for CPUs may answer otherwise there.
    """
    alone = msgspec.structs.replace(source, digest="", profile="fp32")
    on_cpu = trying(lambda each: OnnxExecutor(each, worker_threads=1, wide=False))
    try:
        return on_cpu(alone, batches).outputs
    except (BackendError, StartProblem):
        return None


def _cannot_run(source: GraphSource, error: Exception) -> ModelProblem:
    if isinstance(error, ModelProblem):
        return error
    return ModelProblem(f"{source.path}: it cannot run here: {error}")


def _batches(source: GraphSource) -> list[PaddedBatch]:
    """Return the same rows for each output, to compare answers; every model has their ids."""
    longest = min(source.max_tokens or _USUAL, _LONGEST)
    usual = text_lengths(_MANY, min(longest, _USUAL))
    shapes = [[min(length, longest) for length in _FEW], usual, [longest, 1]]
    return [
        pad([1 + np.arange(length, dtype=np.int32) % _IDS for length in lengths], output)
        for output in source.outputs
        for lengths in shapes
    ]


def _moved(
    expected: list[FloatArray] | None, found: list[FloatArray], batches: list[PaddedBatch]
) -> float:
    """Return how far outputs are apart at most; where nothing is known to be right, infinitely."""
    if expected is None:
        return np.inf
    return max(
        _apart(right, other, batch.mask)
        for right, other, batch in zip(expected, found, batches, strict=True)
    )


def _apart(expected: FloatArray, found: FloatArray, mask: IntArray) -> float:
    """Return how far outputs are apart, as a share of the largest value; NaN is infinitely far."""
    if expected.shape != found.shape:
        return np.inf
    if expected.ndim > mask.ndim:
        expected, found = expected[mask > 0], found[mask > 0]
    largest = float(np.abs(expected).max()) or 1.0
    moved = float(np.abs(expected - found).max()) / largest
    return moved if np.isfinite(moved) else np.inf


def _predict(cost: CostModel, loads: list[Lengths]) -> float:
    return sum(
        cost.seconds(rows=len(lengths), longest=max(lengths), tokens=sum(lengths))
        for lengths in loads
    )
