"""Chooses the rows of a batch from lengths, time left and predicted cost, without side effects.

`FairQueue` chooses the first row of a batch. `choose_batch` chooses the other rows.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from sluicegate.backends.executors.cost import CostModel

# A row that joins a batch is expected to save this fraction of the fixed cost of a later batch.
_EXPECTED_SAVING = 0.3
# If a request has more rows to come, rows of other requests may prolong its batch by this many
# times the fixed cost of a batch.
_FIXED_COSTS = 3.0
# Ignore the remaining rows of a request if they would take less than this fraction of the batch's
# time, because estimates are inexact.
_ESTIMATE_ERROR = 0.5
_NO_ROWS: Mapping[int, int] = MappingProxyType({})


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits a batch: its rows, its tokens with padding, and the cost of padding.

    `padding` is the maximum fraction of a batch's time that padding may take. The fixed cost of a
    batch is not part of that time. With `by_arrival`, a batch consists of the oldest rows of any
    length, up to `rows` rows. No other limit applies then. This mode is a baseline for comparisons.
    """

    rows: int = 16
    tokens: int = 4096
    padding: float = 0.1
    by_arrival: bool = False


class Release(StrEnum):
    """Names the reason why no more rows joined a batch."""

    IDLE = "idle"  # no more rows were waiting
    FULL = "full"  # another row would exceed the limit of rows or tokens
    DEADLINE = "deadline"  # another row would make the batch late
    LENGTH = "length"  # the lengths of the waiting rows differ too much
    OUTLIER = "outlier"  # no other waiting row has a similar length, so one row runs alone
    SHARED = "shared"  # idle threads run the other rows at the same time


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a batch as `(length, number of rows)` pairs, and why no more rows joined."""

    lengths: list[tuple[int, int]]
    release: Release
    seconds: float


def choose_batch(
    anchor: int,
    waiting: Mapping[int, int],
    limits: BatchLimits,
    cost: CostModel,
    *,
    time_left: float,
    own: Mapping[int, int] = _NO_ROWS,
    own_work: float = 0.0,
) -> Choice:
    """Choose the rows that run with the first row, which has `anchor` tokens.

    `waiting` counts the waiting rows of each length, including the first row. Rows with nearly the
    length of the first row join first. A row joins if three conditions hold: it costs less in this
    batch than in a batch of its own length, padding stays within its limit, and the batch ends
    within `time_left`.

    `own` counts the rows of `waiting` that belong to the first row's request. They join before all
    other rows. `own_work` is the predicted time of all remaining rows of this request. Rows of
    other requests join only if the first row's request still ends in time. While that request has
    more rows to come, rows of other requests must also add little time to the batch. Otherwise, all
    requests would share all batches and end late at the same time, and then the device would be
    idle.
    """
    batch = _Batch(anchor, limits, cost)
    if own:
        batch.fill(own, {}, time_left)
        own_work -= batch.alone
    if batch.release not in _COMPLETE:
        # Leave time for the rest of the request, which runs after this batch.
        limit = time_left - max(0.0, own_work)
        if own_work > _ESTIMATE_ERROR * batch.seconds:
            limit = min(limit, batch.seconds + _FIXED_COSTS * cost.base)
        batch.fill(waiting, own, limit)
    release = batch.release
    if release is Release.LENGTH and batch.count == 1:
        release = Release.OUTLIER
    return Choice(lengths=list(batch.chosen.items()), release=release, seconds=batch.seconds)


_COMPLETE = frozenset({Release.FULL, Release.DEADLINE})


class _Batch:
    """Collects the chosen rows by length."""

    def __init__(self, anchor: int, limits: BatchLimits, cost: CostModel) -> None:
        self._anchor, self._limits, self._cost = anchor, limits, cost
        self.chosen = {anchor: 1}
        self.count, self._longest, self._tokens = 1, anchor, anchor
        self.seconds = cost.seconds(rows=1, longest=anchor, tokens=anchor)
        self.alone = cost.alone(anchor)
        """The predicted seconds of the chosen rows without padding and fixed cost."""
        self.release = Release.IDLE

    def fill(self, waiting: Mapping[int, int], without: Mapping[int, int], limit: float) -> None:
        """Add waiting rows as long as the batch takes at most `limit` seconds.

        `waiting` and `without` count rows by length. The rows in `without` are not added. The batch
        already contains its first row. If `without` is empty, `waiting` includes the first row,
        which this method does not add a second time.
        """
        anchor = self._anchor
        for _, length in sorted([(abs(length - anchor), length) for length in waiting]):
            available = waiting[length] - without.get(length, 0)
            if not without and length == anchor:
                available -= 1
            alone = self._cost.alone(length)
            for _ in range(available):
                refused = self._add(length, alone, limit)
                if refused is not None:
                    break
            else:
                continue
            if refused in _COMPLETE:
                self.release = refused
                return
            self.release = refused

    def _add(self, length: int, alone: float, limit: float) -> Release | None:
        """Put a row into the batch, or return the reason why it does not fit."""
        cost, count, widest = self._cost, self.count + 1, max(self._longest, length)
        tokens = self._tokens + length
        if self.count == self._limits.rows or count * widest > self._limits.tokens:
            return Release.FULL
        longer = cost.seconds(rows=count, longest=widest, tokens=tokens)
        if longer > limit:
            return Release.DEADLINE
        wasted = cost.padding(longer, alone=self.alone + alone)
        too_wasteful = wasted > self._limits.padding * (longer - cost.base)
        if longer - self.seconds > alone + _EXPECTED_SAVING * cost.base or too_wasteful:
            return Release.LENGTH
        self.chosen[length] = self.chosen.get(length, 0) + 1
        self.count, self._longest, self._tokens = count, widest, tokens
        self.seconds, self.alone = longer, self.alone + alone
        return None
