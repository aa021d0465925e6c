"""Learns a safety factor on predicted waits from rows that missed their deadlines.

Predictions are of the mean: rows of rare lengths wait longer, because more frequent lengths join
the batches before them. An answer that just misses its deadline is wasted work.
"""

import math

from backends.batching.fair_queue import BULK
from backends.batching.queue import DequeuedBatch

# The share of rows that may be late.
_LATE_SHARE = 0.005
_STEP = 0.02
# The time constant, in seconds, with which the factor returns to its first value.
_MEMORY = 20.0
_LEAST, _FIRST, _MOST = 1.2, 1.4, 4.0


class LatenessMargin:
    """Holds the factor on predicted waits, which rises with each late row and falls with others.

    Both steps are in balance where the share of late rows is `_LATE_SHARE`: a quantile followed by
    stochastic gradient descent (Robbins and Monro, 1951). Over time it decays to its first value.
    """

    def __init__(self) -> None:
        self.factor = _FIRST
        self._learned = -math.inf

    def learn(self, batch: DequeuedBatch, ended: float) -> None:
        """Count the rows of a batch that ended at `ended`, and those dropped from it as expired.

        Bulk rows do not count: they were admitted without a prediction.
        """
        if self.factor > _FIRST:
            # The cause may be over, and a factor that is too high admits few rows to learn from.
            fade = math.exp(min(0.0, self._learned - ended) / _MEMORY)
            self.factor = _FIRST + (self.factor - _FIRST) * fade
        self._learned = ended
        is_expired = sum(row.is_expired and row.flow[0] != BULK for row in batch.dropped)
        ran = [row for row in batch.rows if row.flow[0] != BULK]
        late = sum([row.deadline < ended for row in ran])
        self.count(in_time=len(ran) - late, late=is_expired + late)

    def count(self, *, in_time: int, late: int) -> None:
        """Move the factor by so many rows."""
        moved = late * (1.0 - _LATE_SHARE) - in_time * _LATE_SHARE
        self.factor = min(_MOST, max(_LEAST, self.factor * (1.0 + _STEP * moved)))
