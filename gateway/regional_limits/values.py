"""Defines the messages between a region's workers and the store of shares."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class BucketDemand(msgspec.Struct, kw_only=True):
    """Counts the units of a bucket that a worker's callers requested since the last report."""

    units: int = 0
    is_held: bool = False
    """Whether units stay reserved until the work ends, which may take as long as a request."""


class QuotaDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at least `minimum` more units of a quota. The store may grant more."""

    limit: int
    """The quota over all regions."""
    period: int
    """When the quota's period ends, in seconds since the epoch."""
    granted: int
    """The units that were granted to the region, as far as the worker knows."""
    minimum: int


class BucketShare(msgspec.Struct, frozen=True, kw_only=True):
    """Gives a region's share of a bucket's limit, 0 to 1: `before` until `raised`, then `used`.

    `raised` is a time in seconds. In the store's response it is on the store's clock, and otherwise
    on the worker's clock.
    """

    used: float
    before: float
    raised: float


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reports a worker's demand to the store, and which shares the worker applies.

    `seen` is the store's time of these shares in nanoseconds; 0 if the worker has no shares.
    """

    region: str
    worker: str
    seen: int
    demand: Mapping[str, BucketDemand] = MappingProxyType({})
    quotas: Mapping[str, QuotaDemand] = MappingProxyType({})


class BucketShares(msgspec.Struct, frozen=True, kw_only=True):
    """Gives a region its shares for `lease` seconds from `now`, the store's time in nanoseconds.

    `changed` holds the shares that may have changed since the `seen` of the report, or all shares
    if `are_all`. A bucket without a share uses `rest`. `granted` holds the granted units of quotas
    by bucket.
    """

    now: int
    lease: float
    regions: int
    rest: BucketShare
    changed: Mapping[str, BucketShare]
    are_all: bool
    granted: Mapping[str, int]
