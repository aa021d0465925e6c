"""Defines the messages between a region's workers and the store of shares."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class BucketDemand(msgspec.Struct, kw_only=True):
    """Counts the units of a bucket that a worker's callers have requested since the last report."""

    units: int = 0
    is_held: bool = False
    """Whether units stay reserved until the work ends, which can take as long as a request."""


class QuotaDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for at least `minimum` more units of a quota. The store may grant more."""

    limit: int
    """The quota for all regions together."""
    period: int
    """When the quota's period ends, in seconds since the epoch."""
    granted: int
    """How many units the region has been granted, as far as the worker knows."""
    minimum: int


class BucketShare(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a region's share of a bucket's limit, as a fraction from 0 to 1.

    The share is `used` since the time `raised`, in seconds on the store's clock. For a day before
    that time, the share was never below `before`.
    """

    used: float
    before: float
    raised: float


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reports a worker's demand to the store, and says which shares the worker applies.

    `seen` is when the store returned these shares, in nanoseconds on the store's clock. It is 0 if
    the worker has no shares.
    """

    region: str
    worker: str
    seen: int
    demand: Mapping[str, BucketDemand] = MappingProxyType({})
    quotas: Mapping[str, QuotaDemand] = MappingProxyType({})


class BucketShares(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a region's shares, which are valid for `lease` seconds.

    `now` is the time on the store's clock in nanoseconds. `changed` holds the shares that may have
    changed since the time `seen` of the report, or all shares if `are_all` is set. `rest` is the
    share of buckets that have no own share. `granted` holds, for each quota's bucket, the units
    that the region has been granted.
    """

    now: int
    lease: float
    regions: int
    rest: BucketShare
    changed: Mapping[str, BucketShare]
    are_all: bool
    granted: Mapping[str, int]
