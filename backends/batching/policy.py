"""Which waiting rows run together: a pure decision over lengths, time left and predicted cost."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from backends.executors.cost import CostModel

# The share of a run's fixed cost that a row may expect to save in some later batch, too.
_PATIENCE = 0.3


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a batch: its rows, its tokens, padding included, and what padding may cost.

    `padding` is a share of the time that the batch takes beyond its fixed part. `by_arrival` takes
    the oldest rows whatever their lengths, as common batchers do: a baseline.
    """

    rows: int = 16
    tokens: int = 4096
    padding: float = 0.1
    by_arrival: bool = False


class Release(StrEnum):
    """Why a batch left as it is."""

    IDLE = "idle"  # it took all that waited
    FULL = "full"  # one row more would be over the rows or the tokens
    DEADLINE = "deadline"  # one row more would make it late
    LENGTH = "length"  # what waits is of other lengths
    OUTLIER = "outlier"  # so much so that the row runs alone


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`(length, rows)` to take, and why no more."""

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
) -> Choice:
    """Return what runs with the most urgent row, which is `anchor` tokens long.

    `waiting` counts the rows of each length, the urgent one among them, which always runs.
    Others join, nearest lengths first, while a row costs less here than in a batch of its own
    length, padding costs little of the whole and the batch still ends within `time_left`. Where
    a graph computes real tokens only, padding costs little, and lengths may differ more.
    """
    chosen = {anchor: 1}
    count, longest, tokens = 1, anchor, anchor
    seconds = cost.seconds(rows=1, longest=anchor, tokens=anchor)
    own = cost.alone(anchor)
    release = Release.IDLE
    for length in sorted(waiting, key=lambda length: (abs(length - anchor), length)):
        alone = cost.alone(length)
        worth = alone + _PATIENCE * cost.base
        widest = max(longest, length)
        for _ in range(waiting[length] - (length == anchor)):
            if count == limits.rows or (count + 1) * widest > limits.tokens:
                release = Release.FULL
                break
            longer = cost.seconds(rows=count + 1, longest=widest, tokens=tokens + length)
            if longer > time_left:
                release = Release.DEADLINE
                break
            wasted = (longer - cost.base) - (own + alone)
            too_wasteful = wasted > limits.padding * (longer - cost.base)
            if longer - seconds > worth or too_wasteful:
                release = Release.LENGTH if release is Release.IDLE else release
                break
            chosen[length] = chosen.get(length, 0) + 1
            count, longest, tokens = count + 1, widest, tokens + length
            seconds, own = longer, own + alone
        if release in {Release.FULL, Release.DEADLINE}:
            break
    if release is Release.LENGTH and count == 1:
        release = Release.OUTLIER
    return Choice(lengths=list(chosen.items()), release=release, seconds=seconds)
