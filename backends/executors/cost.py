"""Predicts the time of a batch with a cost model that is fitted to trial runs."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from sluicegate.backends.errors import ModelFailed, OutOfMemory
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.executors.trial_shapes import CPU_TRIALS, Lengths
from sluicegate.backends.types import OutputKind

_REPEATS = 3
# A fit needs one sample for each term of the cost model.
_LEAST_SAMPLES = 4
# The longest trial row of a graph without a stated maximum.
_MAX_TOKENS = 512


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts the seconds of a batch.

    The time is the sum of four terms: `base` for the batch, `token` for each real token, `padded`
    for each position of the padded batch, and `square` for each position, multiplied by the padded
    length. A graph that skips padding has `padded` near 0.
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
        """Return how many of the `seconds` of a batch are spent on padding.

        `alone` is the sum of `self.alone(length)` over the rows of the batch.
        """
        # Rounding errors may make this negative.
        return max(0.0, seconds - self.base - alone)

    def alone(self, length: int) -> float:
        """Return the seconds that a row adds to a batch of rows of the same length."""
        return (self.token + self.padded + self.square * length) * length


class MeasuredCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the costs of an executor's batches, as an earlier opening of the graph measured them.

    `wide` is the cost of batches that run on all cores.
    """

    cost: CostModel
    wide: CostModel | None = None


class CostSample(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a batch and its measured time."""

    rows: int
    longest: int
    tokens: int
    seconds: float


def fit(trials: Sequence[CostSample]) -> CostModel:
    """Return the cost model with non-negative terms and the least relative squared error."""
    seconds = np.array([trial.seconds for trial in trials])
    padded = np.array([trial.rows * trial.longest for trial in trials])
    longest = np.array([trial.longest for trial in trials])
    tokens = np.array([trial.tokens for trial in trials])
    terms = np.stack([np.ones_like(tokens), tokens, padded, padded * longest], axis=1)
    used = [0, 1, 2, 3]
    while True:
        # Relative errors give short batches the same weight as long batches.
        found = np.linalg.lstsq(terms[:, used] / seconds[:, None], np.ones(len(trials)))[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    values = dict.fromkeys(range(4), 0.0)
    values.update({term: float(value) for term, value in zip(used, found, strict=True)})
    return CostModel(base=values[0], token=values[1], padded=values[2], square=values[3])


class MeasuredGraph(Protocol):
    """Describes the rows that a graph reads, and the output that most rows need."""

    @property
    def max_tokens(self) -> int | None:
        """The length of the longest row."""

    @property
    def first_output(self) -> OutputKind:
        """The output to measure."""
        ...


def measure_cost(
    source: MeasuredGraph,
    run: Callable[[PaddedBatch], object],
    clock: Callable[[], float],
    *,
    trials: Sequence[Lengths] = CPU_TRIALS,
    most_rows: int | None = None,
    seconds: float = math.inf,
) -> CostModel:
    """Run trial batches and return the cost model that fits their times.

    After `seconds`, no more batches run, unless the fit needs more. Batches that run out of memory
    are left out. If a batch fails for another reason, the result is the default cost model.
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
        # Take the fastest run, because other load on the machine only adds time.
        seconds=max(min(seconds), 1e-9),
    )
