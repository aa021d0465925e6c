"""Defines what a region's workers and the store of shares tell each other."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class BucketDemand(msgspec.Struct, kw_only=True):
    """Counts the units that a worker's callers requested of a bucket since the last report."""

    units: int = 0
    is_held: bool = False
    """Units are held until work ends, which may take as long as a request."""


class QuotaDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at least `minimum` more units of a quota; the store may grant its usual step."""

    limit: int
    """The quota over all regions."""
    period: int
    """When the quota's period ends, in seconds since the epoch."""
    granted: int
    """The units granted to the region, as far as the worker has been told."""
    minimum: int


class BucketShare(msgspec.Struct, frozen=True, kw_only=True):
    """Gives a region's part of a bucket's limit, 0 to 1: `before` until `raised`, then `used`.

    `raised` is in seconds: by the store's clock where the store sends it, else by the loop's.
    """

    used: float
    before: float
    raised: float


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reports a worker's demand to the store, and the last answer that the worker applied.

    `seen` is the store's time of that answer, in nanoseconds; 0 is none.
    """

    region: str
    worker: str
    seen: int
    demand: Mapping[str, BucketDemand] = MappingProxyType({})
    quotas: Mapping[str, QuotaDemand] = MappingProxyType({})


class BucketShares(msgspec.Struct, frozen=True, kw_only=True):
    """Gives a region its shares from `now` (the store's time in nanoseconds) for `lease` seconds.

    `changed` holds the shares that may have changed since the report's `seen`, or every share if
    `are_all`. A bucket without a share uses `rest`. `granted` are units of quotas, by bucket.
    """

    now: int
    lease: float
    regions: int
    rest: BucketShare
    changed: Mapping[str, BucketShare]
    are_all: bool
    granted: Mapping[str, int]
