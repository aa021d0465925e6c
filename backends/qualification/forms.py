"""Opens the form of a model's graph that is quickest on this device, of those beside it.

Forms are files named by the provider that they suit: `model.cuda-heads.onnx` beside `model.onnx`.
One is taken only if it answers as `model.onnx` does, within what its precision explains.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from backends.errors import BackendError, ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.padded_batch import PaddedBatch, pad
from backends.qualification.qualify import TOLERANCES
from backends.qualification.records import machine_key, read_record, write_record
from backends.types import FloatArray, IntArray

_log = logging.getLogger(__name__)
RECORD = ".forms.json"
FORM_FILES = "*.*-*.onnx"
# Lengths of the rows that are compared, and of a batch as callers make it.
_LENGTHS = (3, 12, 1, 9)
_ROWS, _LONGEST, _TOKENS = 16, 24, 240


class QuickestForm(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `file` that is quickest here, and the predicted seconds of those that agreed."""

    file: str
    seconds: dict[str, float]


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
    """Return the file of the quickest form, measured once per digest and kind of machine."""
    folder, stem = source.path.parent, source.path.stem
    names = sorted(path.name for path in folder.glob(f"{stem}.{provider}-*.onnx"))
    if not names or source.upstream is not None:
        return source.path
    record, key = folder / RECORD, machine_key(source.digest, provider, *names)
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
    own = open_executor(source)
    expected = [own.run(batch) for batch in batches]
    seconds = {source.path.name: _predict(own)}
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
    return QuickestForm(file=min(seconds, key=seconds.__getitem__), seconds=seconds)


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
