"""Predicts the time of a batch by a cost model, fitted to a few runs at warm-up."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from backends.errors import ModelFailed
from backends.executors.graph import GraphSource
from backends.executors.padded_batch import PaddedBatch, pad

# Row lengths of the trial batches: single and several, of one length and of different ones.
_TRIALS: tuple[tuple[int, ...], ...] = (
    (4,),
    (12,),
    (32,),
    (96,),
    (8,) * 4,
    (16,) * 8,
    (4, 8, 12, 16),
    (4, 6, 8, 10, 12, 14, 18, 24),
    (6, 10, 14, 64),
    (48,) * 4,
)
_REPEATS = 3
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
    most_rows: int | None = None,
) -> CostModel:
    """Run a few batches of a graph, and return the model that fits their times.

    A graph that refuses some of the shapes gets the default, which is corrected while it serves.
    """
    try:
        return fit(_run_trials(source, run, clock, most_rows))
    except ModelFailed:
        return CostModel()


def _run_trials(
    source: GraphSource,
    run: Callable[[PaddedBatch], object],
    clock: Callable[[], float],
    most_rows: int | None,
) -> list[CostSample]:
    trials = []
    for trial in _TRIALS:
        lengths = [min(length, source.max_tokens or _MAX_TOKENS) for length in trial[:most_rows]]
        batch = pad([np.ones(length, dtype=np.int32) for length in lengths], source.first_output)
        seconds = []
        for _ in range(_REPEATS):
            started = clock()
            run(batch)
            seconds.append(clock() - started)
        trials.append(
            CostSample(
                rows=len(lengths),
                longest=max(lengths),
                tokens=sum(lengths),
                # The quickest: other load on the machine only adds time.
                seconds=max(min(seconds), 1e-9),
            )
        )
    return trials
