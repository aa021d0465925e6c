"""Learns a safety factor for predicted waits from rows that missed their deadlines.

Predictions are means, so some rows wait longer than predicted. For example, rows of rare lengths
wait longer, because rows of frequent lengths join earlier batches.
"""

import math

from sluicegate.backends.batching.fair_queue import BULK
from sluicegate.backends.batching.queue import DequeuedBatch

# The fraction of rows that may be late.
_LATE_SHARE = 0.005
_STEP = 0.02
# The time constant, in seconds, with which the factor returns to its initial value.
_MEMORY = 20.0
_LEAST, _FIRST, _MOST = 1.2, 1.4, 4.0


class LatenessMargin:
    """Holds a factor for predicted waits. Late rows raise the factor, and timely rows lower it.

    The factor stays the same if a fixed small fraction of the rows is late. In this way, the factor
    estimates a quantile by stochastic approximation (Robbins and Monro, 1951). Over time, a raised
    factor falls back to its initial value, because the cause of late rows may be over.
    """

    def __init__(self) -> None:
        self.factor = _FIRST
        self._learned = -math.inf

    def learn(self, batch: DequeuedBatch, ended: float) -> None:
        """Count the late and timely rows of a batch that ended at `ended`; expired rows are late.

        Bulk rows do not count, because they are admitted without a prediction.
        """
        if self.factor > _FIRST:
            # The cause of late rows may be over. With a high factor, too few rows are admitted to
            # find out.
            fade = math.exp(min(0.0, self._learned - ended) / _MEMORY)
            self.factor = _FIRST + (self.factor - _FIRST) * fade
        self._learned = ended
        is_expired = sum(row.is_expired and row.flow[0] != BULK for row in batch.dropped)
        ran = [row for row in batch.rows if row.flow[0] != BULK]
        late = sum([row.deadline < ended for row in ran])
        self.count(in_time=len(ran) - late, late=is_expired + late)

    def count(self, *, in_time: int, late: int) -> None:
        """Adjust the factor for rows that ended in time and rows that were late."""
        moved = late * (1.0 - _LATE_SHARE) - in_time * _LATE_SHARE
        self.factor = min(_MOST, max(_LEAST, self.factor * (1.0 + _STEP * moved)))
