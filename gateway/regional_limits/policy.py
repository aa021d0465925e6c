"""Divides a limit among regions, with pure functions of the entries for one bucket.

Each region has one entry for a bucket, and writes only this entry. Regions write one at a time. In
an entry, `used` is the share that the region applies. `held` is the share that other regions must
leave to the region; it is never less than `used`.

A region raises both values in one step, by at most the share that no region holds. It lowers the
values in two steps. First it lowers `used`. It lowers `held` after all its workers have applied the
lower share, and their leases of units have expired. At any time, the sum of the used shares of all
regions is therefore at most 1.

Either all regions have an entry for a bucket, or none has. A region without an entry would apply
its default share, the entry of `REST`. The default share can grow even if the shares of this bucket
are already taken.
"""

from collections.abc import Mapping
from math import exp

import msgspec
from msgspec.structs import replace

REST = ""
"""The bucket name of the entry that applies to all buckets without entries."""
LEASE = 2.0
"""Maximum seconds for which a worker may spend units that it has leased from its region's
bucket."""
DECAY = 10.0
"""The time constant with which demand decays, in seconds. A unit that was requested this long ago
contributes 1/e to the demand."""
EVEN = 0.1
"""This fraction of each limit is divided evenly among regions, regardless of demand."""
_STEP = 0.02
_MIN_CHANGE = 0.001
_QUIET = 0.001
_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND


class ShareEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a region's share of a bucket. Times are in nanoseconds on the store's clock.

    Until the time `raised`, the share was `before`. `lowered` is the time when `used` fell below
    `held`. `lowers` is the time from which `held` can be lowered, too. `lowered` and `lowers` are 0
    if `used` equals `held`. `demand` is in units a second, as computed at the time `counted`.
    Admitted units can stay reserved for `linger` seconds.
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
        """Return the demand in units a second, after its decay until `now`."""
        return self.demand * exp(-max(0, now - self.counted) / _SECOND / DECAY)

    def with_demand(self, units: int, now: int) -> "ShareEntry":
        """Return the entry with `units` added to its demand."""
        return replace(self, demand=self.demanded(now) + units / DECAY, counted=now)


class OtherRegions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the names of all live regions.

    Each worker of this region applies the shares that the store last returned to the worker. `seen`
    is the earliest time at which the store returned shares that a worker still applies.
    """

    regions: frozenset[str]
    seen: int


def decide(
    entries: Mapping[str, ShareEntry], *, bucket: str, own: str, others: OtherRegions, now: int
) -> ShareEntry:
    """Return the next entry of the region `own` for a bucket.

    `entries` holds the bucket's present entries by region. Only live regions have entries.
    """
    entry = _lowered(entries.get(own) or ShareEntry(bucket=bucket, region=own), others.seen, now)
    target = _target(entries, bucket=bucket, own=own, others=others, now=now)
    elsewhere = sum(entry.held for region, entry in entries.items() if region != own)
    room = max(entry.held, min(target, 1.0 - elsewhere))
    # A region without a share waits until the others have lowered theirs, even if only by a little.
    step = _STEP if bucket and all(each.used for each in entries.values()) else _MIN_CHANGE
    # While the second step is pending, the share is not lowered again. Otherwise, a target that
    # keeps falling would postpone the second step for ever.
    if not entry.lowered and target < entry.used - step:
        return replace(entry, used=target, lowered=now, lowers=0, changed=now)
    if entry.used < entry.held and target > entry.used + _MIN_CHANGE:
        return _raised(entry, used=min(target, entry.held), held=entry.held, now=now)
    if entry.used == entry.held and room > entry.held + _MIN_CHANGE:
        return _raised(entry, used=room, held=room, now=now)
    return entry


def first_entries(rests: Mapping[str, ShareEntry], bucket: str, now: int) -> dict[str, ShareEntry]:
    """Return a bucket's first entries, by region.

    They are copies of `rests`, the entries for buckets without entries of their own.
    """
    return {
        region: replace(rest, bucket=bucket, demand=0.0, counted=0, changed=now)
        for region, rest in rests.items()
    }


def _lowered(entry: ShareEntry, seen: int, now: int) -> ShareEntry:
    """Return `entry`, with `held` lowered if the time for this second step has come."""
    if entry.used == entry.held or not entry.lowered:
        return entry
    if not entry.lowers:
        if seen < entry.lowered:
            return entry
        return replace(entry, lowers=now + int((LEASE + entry.linger) * _SECOND))
    if now < entry.lowers:
        return entry
    return replace(entry, held=entry.used, lowered=0, lowers=0)


def _target(
    entries: Mapping[str, ShareEntry], *, bucket: str, own: str, others: OtherRegions, now: int
) -> float:
    """Return the share that `own` should have: an equal part of `EVEN`, and a part by demand."""
    even = 1.0 / len(others.regions)
    demands = {region: entry.demanded(now) for region, entry in entries.items()}
    total = sum(demands.values())
    if bucket == REST or total < _QUIET:
        return even
    return EVEN * even + (1.0 - EVEN) * demands.get(own, 0.0) / total


def _raised(entry: ShareEntry, *, used: float, held: float, now: int) -> ShareEntry:
    # If the share was raised several times within a day, the lowest former share is kept, because a
    # low value is safe.
    before = min(entry.before, entry.used) if entry.raised > now - _DAY else entry.used
    lowering = {} if used < held else {"lowered": 0, "lowers": 0}
    return replace(entry, used=used, held=held, before=before, raised=now, changed=now, **lowering)
