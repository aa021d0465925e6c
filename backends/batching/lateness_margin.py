"""How much longer than predicted a row is expected to wait, learned from rows that came too late.

Predictions are of the mean: rows of rare lengths wait longer, because likelier ones join the
batches before them. An answer that just misses its deadline is work and patience for nothing.
"""

import math

from backends.batching.fair_queue import BULK
from backends.batching.queue import DequeuedBatch

# One row in so many may wait in vain.
_IN_VAIN = 0.005
_STEP = 0.02
# Seconds after which most of what was learned beyond the first value is forgotten.
_MEMORY = 20.0
_LEAST, _FIRST, _MOST = 1.2, 1.4, 4.0


class LatenessMargin:
    """The factor on predicted waits. It rises with each row in vain and falls with each other.

    Both steps are in balance where the share of rows in vain is `_IN_VAIN`: a quantile followed by
    stochastic gradient descent (Robbins and Monro, 1951). With time it falls back to its beginning.
    """

    def __init__(self) -> None:
        self.factor = _FIRST
        self._learned = -math.inf

    def learn(self, taken: DequeuedBatch, ended: float) -> None:
        """Count rows that a lane has run by `ended`, and those that were too late before or then.

        Bulk rows do not count: they were let in without a prediction.
        """
        if self.factor > _FIRST:
            # What made rows late may be over, and few rows come through a factor that is too high.
            fade = math.exp(min(0.0, self._learned - ended) / _MEMORY)
            self.factor = _FIRST + (self.factor - _FIRST) * fade
        self._learned = ended
        expired = sum(row.expired and row.flow[0] != BULK for row in taken.dropped)
        ran = [row for row in taken.rows if row.flow[0] != BULK]
        late = sum(row.deadline < ended for row in ran)
        self.count(in_time=len(ran) - late, in_vain=expired + late)

    def count(self, *, in_time: int, in_vain: int) -> None:
        """Move the factor by so many rows."""
        moved = in_vain * (1.0 - _IN_VAIN) - in_time * _IN_VAIN
        self.factor = min(_MOST, max(_LEAST, self.factor * (1.0 + _STEP * moved)))
