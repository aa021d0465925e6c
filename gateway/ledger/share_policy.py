"""How a limit is divided among regions: pure decisions about one bucket's rows.

Each region writes its own row only, in turns. `held` is what the others must leave alone, `used`
what the region goes by. It raises its share by what nobody holds. It lowers it in two steps: first
`used`, then, once all its workers have heard of that and what they had taken before has ended,
`held`. So the shares that are used add up to at most 1 at any time. Where one region has a row of a
bucket, all have: else a share of the rest could grow beside rows that do not know.
"""

from collections.abc import Mapping
from math import exp

import msgspec
from msgspec.structs import replace

REST = ""
"""The bucket whose row stands for all that have none."""
LEASE = 2.0
"""Seconds that a worker may spend what it took from its region's bucket."""
MEMORY = 10.0
"""Seconds in which what was asked for counts for a third of what it did."""
EVEN = 0.1
"""The part of every limit that is divided evenly, whoever asks."""
_STEP = 0.02
_LEAST = 0.001
_QUIET = 0.001
_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A region's share of a bucket. Times are nanoseconds of the store's clock.

    Until `raised` it was `before`. `lowered` is when `used` fell below `held`, and `lowers` when
    `held` may follow, both 0 where it did not. `demand` is what was asked for a second, as of
    `counted`. What is admitted stays for `linger` seconds.
    """

    bucket: str
    region: str
    held: float = 0.0
    used: float = 0.0
    before: float = 0.0
    raised: int = 0
    lowered: int = 0
    lowers: int = 0
    linger: float = 0.0
    demand: float = 0.0
    counted: int = 0
    changed: int = 0

    def demanded(self, now: int) -> float:
        """Return the demand by now."""
        return self.demand * exp(-max(0, now - self.counted) / _SECOND / MEMORY)

    def with_demand(self, units: int, now: int) -> "PolicyRow":
        """Return the row with `units` more asked for."""
        return replace(self, demand=self.demanded(now) + units / MEMORY, counted=now)


class OtherRegions(msgspec.Struct, frozen=True, kw_only=True):
    """What a region must know to decide: all regions that live, and what its workers have seen.

    `seen` is the oldest answer that a worker of the region goes by.
    """

    regions: frozenset[str]
    seen: int


def decide(
    rows: Mapping[str, PolicyRow], *, bucket: str, own: str, others: OtherRegions, now: int
) -> PolicyRow:
    """Return region `own`'s row of a bucket as it should be, of `rows` by region."""
    row = _settled(rows.get(own) or PolicyRow(bucket=bucket, region=own), others.seen, now)
    target = _target(rows, bucket=bucket, own=own, others=others, now=now)
    elsewhere = sum(row.held for region, row in rows.items() if region != own)
    room = max(row.held, min(target, 1.0 - elsewhere))
    # One step at a time: a target that goes on falling must not put the second one off for ever.
    if not row.lowered and target < row.used - (_STEP if bucket else _LEAST):
        return replace(
            row, used=target, before=min(row.before, target), lowered=now, lowers=0, changed=now
        )
    if row.used < row.held and target > row.used + _LEAST:
        return _raised(row, used=min(target, row.held), held=row.held, now=now)
    if row.used == row.held and room > row.held + _LEAST:
        return _raised(row, used=room, held=room, now=now)
    return row


def first_rows(rests: Mapping[str, PolicyRow], bucket: str, now: int) -> dict[str, PolicyRow]:
    """Return the rows of a bucket that had none, by region: as it is with the rest."""
    return {
        region: replace(rest, bucket=bucket, demand=0.0, counted=0, changed=now)
        for region, rest in rests.items()
    }


def _settled(row: PolicyRow, seen: int, now: int) -> PolicyRow:
    """Return `row` with the second step of lowering made, where it may be."""
    if row.used == row.held or not row.lowered:
        return row
    if not row.lowers:
        if seen < row.lowered:
            return row
        return replace(row, lowers=now + int((LEASE + row.linger) * _SECOND))
    if now < row.lowers:
        return row
    return replace(row, held=row.used, lowered=0, lowers=0)


def _target(
    rows: Mapping[str, PolicyRow], *, bucket: str, own: str, others: OtherRegions, now: int
) -> float:
    """Return the share that `own` should have: a little in any case, the rest by demand."""
    even = 1.0 / len(others.regions)
    demands = {
        region: row.demanded(now) for region, row in rows.items() if region in others.regions
    }
    total = sum(demands.values())
    if bucket == REST or total < _QUIET:
        return even
    return EVEN * even + (1.0 - EVEN) * demands.get(own, 0.0) / total


def _raised(row: PolicyRow, *, used: float, held: float, now: int) -> PolicyRow:
    # Of several raises within a day, what there was before the first: rather too little.
    before = min(row.before, row.used) if row.raised > now - _DAY else row.used
    lowering = {} if used < held else {"lowered": 0, "lowers": 0}
    return replace(row, used=used, held=held, before=before, raised=now, changed=now, **lowering)
