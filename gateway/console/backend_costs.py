"""Computes the past cost of backends from the published configuration documents. Does no I/O."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from sluicegate.gateway.config.document import Document, PoolConfig

_HOUR = 3_600.0
_NANO = 1_000_000_000


class DatedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration document, and the Unix time in seconds at which it became active."""

    since: float
    document: Document


def hourly_rate(document: Document, resolved: Mapping[str, int]) -> int:
    """Return the cost per hour of all backends of `document`, in 10^-9 of a currency unit.

    An entry of the document with a DNS name can stand for several backends. `resolved` maps the id
    of such an entry to their number.
    """
    pools = [pool for region in document.regions for pool in region.pools]
    return sum(round(pool.cost_per_hour * _NANO) * _size(pool, resolved) for pool in pools)


def unpriced_pools(document: Document) -> list[str]:
    """Return the pools without a `cost_per_hour`, as `region/pool`."""
    return [
        f"{region.name}/{pool.name}"
        for region in document.regions
        for pool in region.pools
        if pool.backends and not pool.cost_per_hour
    ]


def backend_costs(
    documents: Sequence[DatedDocument], edges: Sequence[float], resolved: Mapping[str, int]
) -> list[int]:
    """Return the cost of all backends in each span between two adjacent `edges`.

    Costs are in 10^-9 of a currency unit. `edges` are Unix times in seconds.

    `documents` are sorted by time. The cost is 0 before the time of the first document.
    """
    ends = [document.since for document in documents[1:]] + [edges[-1]]
    rates = [hourly_rate(each.document, resolved) for each in documents]
    spans = list(zip(documents, ends, rates, strict=True))
    return [
        sum(round(rate * _overlap(each.since, end, start, stop)) for each, end, rate in spans)
        for start, stop in pairwise(edges)
    ]


def _overlap(since: float, until: float, start: float, stop: float) -> float:
    """Return the number of hours in which two spans overlap."""
    return max(0.0, min(until, stop) - max(since, start)) / _HOUR


def _size(pool: PoolConfig, resolved: Mapping[str, int]) -> int:
    return sum(resolved.get(each.id, 0) if each.dns else 1 for each in pool.backends)
