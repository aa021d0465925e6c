"""Chooses rows to batch: a pure decision over lengths, time left and predicted cost.

`RowQueue.take` calls it with the row that leads, which is that of the flow furthest behind
(`FairQueue`). Padding has one formula, `CostModel.padding`: it bounds a batch here, and
`Meter.count` adds it up for what was run.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from backends.executors.cost import CostModel

# The share of a run's fixed cost that a row may expect to save in a later batch, too.
_EXPECTED_SAVING = 0.3
# A batch of a request with more to come may take so many fixed costs longer for rows of others.
_FIXED_COSTS = 3.0
# Less than this share of a batch is no more to come: estimates are off by so much.
_ESTIMATE_ERROR = 0.5
_NO_ROWS: Mapping[int, int] = MappingProxyType({})


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds a batch: its rows, its tokens with padding, and the cost of padding.

    `padding` is a share of the time that the batch takes beyond its fixed part. `by_arrival` takes
    the oldest rows of a class, up to `rows`, whatever their lengths, as common batchers do: a
    baseline, which asks `choose_batch` nothing.
    """

    rows: int = 16
    tokens: int = 4096
    padding: float = 0.1
    by_arrival: bool = False


class Release(StrEnum):
    """Names the reason for which no row more joined a batch."""

    IDLE = "idle"  # it took all that waited
    FULL = "full"  # one row more would be over the rows or the tokens
    DEADLINE = "deadline"  # one row more would make it late
    LENGTH = "length"  # what waits is of other lengths
    OUTLIER = "outlier"  # so much so that the row runs alone


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the chosen `(length, rows)`, and the reason for which no more were."""

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
    """Return what runs with the leading row, which is `anchor` tokens long.

    `waiting` counts the rows of each length, the leading one among them, which always runs.
    Others join, nearest lengths first, while a row costs less here than in a batch of its own
    length, padding costs little of the whole and the batch still ends within `time_left`. Where
    a graph computes real tokens only, padding costs little, and lengths may differ more.

    `own` counts those rows of `waiting` that are of the leading one's request, which bring
    `own_work`: they join first. Others join only as far as these will still be in time and, while
    the request has more to come, where that costs little beside the batch they save: requests that
    share every batch all end late together, and then leave the device idle together.
    """
    batch = _Batch(anchor, limits, cost)
    if own:
        batch.fill(own, {}, time_left)
        own_work -= batch.alone
    if batch.release not in _COMPLETE:
        # The rest of the request runs after this batch.
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
        """What the chosen rows would take, each in a batch of its own length."""
        self.release = Release.IDLE

    def fill(self, waiting: Mapping[int, int], without: Mapping[int, int], limit: float) -> None:
        """Add rows of `waiting`, but for those of `without`, while the batch ends within `limit`.

        Without any in `without`, the anchor is counted in `waiting`, and is not added twice.
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
        """Add a row; return why it may not join, where it does not."""
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
