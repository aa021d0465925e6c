"""Opens the form of a model's graph that is quickest on this device, of those beside it.

Forms are files named by what they suit: beside `model.onnx` lie `model.cuda-heads.onnx`, the same
in half precision as `model.cuda-heads-fp16.onnx`, and `model.any-plain.onnx` for runtimes that
compile a graph. One is taken only if it has the precision that the model declares and answers as
`model.onnx` does, within what that precision explains.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from backends.errors import BackendError, ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import PaddedBatch, pad
from backends.qualification.fallback import check_fallback, running
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
# Lengths of the rows that are compared, and of a batch as callers make it.
_LENGTHS = (3, 12, 1, 9)
_ROWS, _LONGEST, _TOKENS = 16, 24, 240


class QuickestForm(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `file` that is quickest here, and the predicted seconds of those that agreed."""

    file: str
    seconds: dict[str, float]


def form_name(graph: Path, device: Device, attention: str, precision: str = "fp32") -> str:
    """Return the file name of a form of `graph`."""
    suffix = f"-{precision}" if precision in _HALVES else ""
    return f"{graph.stem}.{device}-{attention}{suffix}.onnx"


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


def open_quickest(
    source: GraphSource,
    *,
    provider: str,
    profile: str,
    open_executor: Callable[[GraphSource], ModelExecutor],
) -> ModelExecutor:
    """Return the executor of the quickest form."""
    path = find_quickest(source, provider=provider, profile=profile, open_executor=open_executor)
    return open_executor(msgspec.structs.replace(source, path=path))


def find_quickest(
    source: GraphSource,
    *,
    provider: str,
    profile: str,
    open_executor: Callable[[GraphSource], ModelExecutor],
) -> Path:
    """Return the file of the quickest form, measured once per digest and kind of machine.

    Raises:
        ModelProblem: no form, nor the graph itself, answers on this device.
    """
    folder = source.path.parent
    if source.upstream is not None:
        return source.path
    names = find_forms(source.path, provider=provider, profile=profile)
    if not names:
        check_fallback(source, provider=provider, run=running(open_executor))
        return source.path
    record, key = folder / RECORD, machine_key(source.digest, provider, profile, *names)
    found = read_record(record, key, QuickestForm)
    if found is None:
        found = _measure(source, names, TOLERANCES.get(profile, TOLERANCES["fp32"]), open_executor)
        write_record(record, key, found)
    return folder / found.file


def _measure(
    source: GraphSource,
    names: list[str],
    tolerance: float,
    open_executor: Callable[[GraphSource], ModelExecutor],
) -> QuickestForm:
    batches = _batches(source)
    own, expected, problem = _run_reference(source, batches, open_executor)
    seconds = {source.path.name: _predict(own)} if problem is None else {}
    for name in names:
        path = source.path.with_name(name)
        try:
            form = open_executor(msgspec.structs.replace(source, path=path))
            found = [form.run(batch) for batch in batches]
        except (BackendError, ModelProblem) as error:
            _log.info("a form of a graph cannot run here", extra={"form": name, "why": str(error)})
            continue
        apart = max(
            _apart(right, other, batch.mask)
            for right, other, batch in zip(expected, found, batches, strict=True)
        )
        if apart <= tolerance:
            seconds[name] = _predict(form)
        else:
            _log.warning(
                "a form of a graph answers otherwise", extra={"form": name, "moved": apart}
            )
    if problem is not None and not seconds:
        raise problem
    return QuickestForm(file=min(seconds, key=seconds.__getitem__), seconds=seconds)


def _run_reference(
    source: GraphSource,
    batches: list[PaddedBatch],
    open_executor: Callable[[GraphSource], ModelExecutor],
) -> tuple[ModelExecutor, list[FloatArray], ModelProblem | None]:
    """Run what forms are compared with: the graph on the device, or why not, and on a CPU."""
    try:
        own = open_executor(source)
        return own, [own.run(batch) for batch in batches], None
    except (BackendError, ModelProblem) as error:
        problem = (
            error
            if isinstance(error, ModelProblem)
            else ModelProblem(f"{source.path}: it cannot run here: {error}")
        )
        # A device that has no kernels for it may have them for a form.
        alone = msgspec.structs.replace(source, digest="", profile="fp32")
        try:
            own = OnnxExecutor(alone, worker_threads=1, wide=False)
            return own, [own.run(batch) for batch in batches], problem
        except (BackendError, ModelProblem):
            raise problem from None


def _batches(source: GraphSource) -> list[PaddedBatch]:
    """Return the same rows for each output; their ids are small, so every model has them."""
    longest = source.max_tokens or max(_LENGTHS)
    rows = [1 + np.arange(min(n, longest), dtype=np.int32) for n in _LENGTHS]
    return [pad(rows, output) for output in source.outputs]


def _apart(expected: FloatArray, found: FloatArray, mask: IntArray) -> float:
    """Return how far outputs are apart, as a share of the largest value; NaN is infinitely far."""
    if expected.shape != found.shape:
        return np.inf
    if expected.ndim > mask.ndim:
        expected, found = expected[mask > 0], found[mask > 0]
    largest = float(np.abs(expected).max()) or 1.0
    moved = float(np.abs(expected - found).max()) / largest
    return moved if np.isfinite(moved) else np.inf


def _predict(executor: ModelExecutor) -> float:
    return executor.cost.seconds(rows=_ROWS, longest=_LONGEST, tokens=_TOKENS)
