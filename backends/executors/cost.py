"""Predicts the time of a batch by a cost model, fitted to a few runs at warm-up."""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from backends.errors import ModelFailed, OutOfMemory
from backends.executors.graph import GraphSource
from backends.executors.padded_batch import PaddedBatch, pad
from backends.executors.trial_shapes import CPU_TRIALS, Lengths
from backends.types import OutputKind

_REPEATS = 3
# As many as the model has terms.
_LEAST_SAMPLES = 4
# The longest trial row of a graph that states no maximum.
_MAX_TOKENS = 512


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts a batch's seconds: fixed, per token, per padded token, per length^2.

    `token` is the price of a real token, `padded` that of a position of the padded batch. A graph
    that skips padding has `padded` near 0. The defaults apply where nothing was measured.
    """

    base: float = 1e-3
    token: float = 0.0
    padded: float = 160e-6
    square: float = 70e-9

    def seconds(self, *, rows: int, longest: int, tokens: int) -> float:
        """Return the predicted time of a batch padded to `longest`."""
        padded = rows * longest
        return (
            self.base + self.token * tokens + self.padded * padded + self.square * padded * longest
        )

    def padding(self, seconds: float, *, alone: float) -> float:
        """Return what padding takes of a batch's `seconds`; `alone` is the sum of its rows'."""
        # Rounding may leave less than nothing where there is no padding.
        return max(0.0, seconds - self.base - alone)

    def alone(self, length: int) -> float:
        """Return what a row adds to a batch of its own length."""
        return (self.token + self.padded + self.square * length) * length


class CostSample(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a batch that was run and the time it took."""

    rows: int
    longest: int
    tokens: int
    seconds: float


def fit(trials: Sequence[CostSample]) -> CostModel:
    """Return the model with the least relative error whose terms are not negative."""
    seconds = np.array([trial.seconds for trial in trials])
    padded = np.array([trial.rows * trial.longest for trial in trials])
    longest = np.array([trial.longest for trial in trials])
    tokens = np.array([trial.tokens for trial in trials])
    terms = np.stack([np.ones_like(tokens), tokens, padded, padded * longest], axis=1)
    used = [0, 1, 2, 3]
    while True:
        # Relative errors: a short batch matters as much as a long one.
        found = np.linalg.lstsq(terms[:, used] / seconds[:, None], np.ones(len(trials)))[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    values = dict.fromkeys(range(4), 0.0)
    values.update({term: float(value) for term, value in zip(used, found, strict=True)})
    return CostModel(base=values[0], token=values[1], padded=values[2], square=values[3])


def measure_cost(
    source: GraphSource,
    run: Callable[[PaddedBatch], object],
    clock: Callable[[], float],
    *,
    trials: Sequence[Lengths] = CPU_TRIALS,
    most_rows: int | None = None,
    seconds: float = math.inf,
) -> CostModel:
    """Run batches of these row lengths, and return the model that fits their times.

    After `seconds` the batches that are left are not run, but for the first few. A batch that
    there is no memory for is left out. A graph that refuses some of the shapes gets the default,
    which is corrected while it serves.
    """
    samples: list[CostSample] = []
    began = clock()
    for trial in trials:
        if len(samples) >= _LEAST_SAMPLES and clock() - began > seconds:
            break
        lengths = [min(length, source.max_tokens or _MAX_TOKENS) for length in trial[:most_rows]]
        try:
            samples.append(_run_trial(source.first_output, lengths, run, clock))
        except OutOfMemory:
            continue
        except ModelFailed:
            return CostModel()
    return fit(samples) if len(samples) >= _LEAST_SAMPLES else CostModel()


def _run_trial(
    output: OutputKind,
    lengths: Sequence[int],
    run: Callable[[PaddedBatch], object],
    clock: Callable[[], float],
) -> CostSample:
    batch = pad([np.ones(length, dtype=np.int32) for length in lengths], output)
    seconds = []
    for _ in range(_REPEATS):
        started = clock()
        run(batch)
        seconds.append(clock() - started)
    return CostSample(
        rows=len(lengths),
        longest=max(lengths),
        tokens=sum(lengths),
        # The quickest: other load on the machine only adds time.
        seconds=max(min(seconds), 1e-9),
    )
