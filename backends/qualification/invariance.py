"""Measures batch invariance: how much a row's output depends on the rows beside it.

A dynamically quantized graph computes a scale from its whole input, so a row's output changes with
its batch. One tenant's text could then change another tenant's result, and a cache would keep the
changed result.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from sluicegate.backends.errors import ModelFailed
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.types import FloatArray, IntArray, OutputKind

# Texts of different lengths. Outliers are unlike ordinary text.
ORDINARY = (
    "My card has not arrived yet, and it has been more than two weeks since I ordered it.",
    "Good.",
    "The film is a little too long, but the actors are a joy to watch.",
    "Shares fell on Tuesday after the company had warned of lower sales in the last quarter.",
    "Where can I find the nearest machine that takes this card?",
    "She moved to Paris in 1998 and opened a small shop near the station.",
    "It rained.",
)
OUTLIERS = (
    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "%%% ### @@@ ~~~ ^^^ ||| $$$ &&& *** +++",
    "\u00a7 \u20ac \u00a5 \u2603 \u6f22\u5b57 \u0416\u0416\u0416 \u03a9\u03a9",
)
_MATES = 3


class Invariance(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how much a row's output changes with its batch; 0 means no change.

    Changes are relative to the largest value of the output. `mates` is the change when the other
    rows of the batch are replaced, but the batch's shape and the row's place stay the same.
    `shapes` is the change when the row runs alone and without padding.
    """

    mates: float
    shapes: float

    @property
    def shares_batches(self) -> bool:
        """Whether rows of different callers may run in one batch."""
        return self.mates == 0.0


def measure_invariance(
    executor: ModelExecutor,
    *,
    outputs: Iterable[OutputKind],
    encode: Callable[[Sequence[str]], list[IntArray]],
    max_tokens: int,
) -> Invariance:
    """Run a few rows alone, among ordinary rows, and among outliers.

    Raises:
        ModelFailed: the executor fails, or an output has a NaN or an infinity.
    """
    ordinary = [row[:max_tokens] for row in encode(ORDINARY)]
    outliers = [row[:max_tokens] for row in encode(OUTLIERS)]
    mates = shapes = 0.0
    mates_at_most = min(_MATES, (executor.most_rows or _MATES + 1) - 1)
    for output in outputs:
        for subject, others in ((ordinary[0], ordinary[1:]), (ordinary[1], ordinary[2:])):
            probe = _InvarianceProbe(executor, output, subject, (*others, *outliers))
            base = probe.among(others[:mates_at_most])
            for neighbours in (others[-mates_at_most:], outliers[:mates_at_most]):
                mates = max(mates, _moved(base, probe.among(neighbours)))
            shapes = max(shapes, _moved(base, probe.alone()))
    return Invariance(mates=mates, shapes=shapes)


class _InvarianceProbe:
    """Runs one row alone, or at the second place of a batch that always has the same length."""

    def __init__(
        self,
        executor: ModelExecutor,
        output: OutputKind,
        subject: IntArray,
        others: Sequence[IntArray],
    ) -> None:
        self._executor = executor
        self._output = output
        self._subject = subject
        self._length = max(len(row) for row in (subject, *others))

    def among(self, mates: Sequence[IntArray]) -> FloatArray:
        return self._run([mates[0], self._subject, *mates[1:]], self._length, place=1)

    def alone(self) -> FloatArray:
        return self._run([self._subject], len(self._subject), place=0)

    def _run(self, rows: Sequence[IntArray], length: int, *, place: int) -> FloatArray:
        batch = pad(rows, self._output, length=length)
        result: FloatArray = self._executor.run(batch)[place]
        if not np.isfinite(result).all():
            raise ModelFailed("the output has a NaN or an infinity; check the model's weights")
        return self._executor.joined.real(result, self._output, len(self._subject))


def _moved(before: FloatArray, after: FloatArray) -> float:
    if before.tobytes() == after.tobytes():
        return 0.0
    largest = float(np.abs(before).max()) or 1.0
    moved = float(np.abs(before - after).max()) / largest
    # Equal values may have different bits (the sign of zero). NaN counts as an infinite change.
    return moved if moved > 0.0 else float(np.finfo(np.float32).tiny) if moved == 0.0 else np.inf
