"""Reads the cost of backends from published configuration documents and workers' reports."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_sources
from sluicegate.gateway.console.backend_costs import (
    DatedDocument,
    backend_costs,
    hourly_rate,
    unpriced_pools,
)
from sluicegate.gateway.console.usage_series import Buckets
from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.operations.fleet_view import reported_backends
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of all backends in each hour or day of a chart."""

    costs: list[int] | None = None
    """Costs in 10^-9 of a currency unit. `None` if no pool has a cost, or if prices have several
    currencies."""
    unpriced: list[str] = []
    """The pools without a cost, as `region/pool`."""
    rate: int = 0
    """What all present backends cost in an hour, in 10^-9 of a currency unit."""


class MarginReader:
    """Computes the cost of backends. Caches parsed documents, because they never change."""

    def __init__(self, *, placement: Path | None) -> None:
        self._placement = placement
        self._documents: dict[int, Document | None] = {}

    async def read(self, control: Control, active: Document, buckets: Buckets) -> Margins:
        """Return the cost of backends, from the `active` configuration and those in the history."""
        if len({price.currency for price in active.prices}) > 1:
            return Margins()
        resolved = await _resolved(control)
        rate, unpriced = hourly_rate(active, resolved), unpriced_pools(active)
        documents = await self._history(control)
        if not any(_has_costs(each.document) for each in documents):
            return Margins(unpriced=unpriced)
        costs = backend_costs(documents, buckets.edges, resolved)
        return Margins(costs=costs, unpriced=unpriced, rate=rate)

    async def _history(self, control: Control) -> list[DatedDocument]:
        try:
            published = list(reversed(await control.history()))
        except DependencyUnavailable:
            return []
        found = await asyncio.to_thread(
            lambda: [(each, self._document(each)) for each in published]
        )
        kept = {each.generation for each in published}
        self._documents = {key: self._documents[key] for key in self._documents if key in kept}
        dated = [DatedDocument(since=each.time, document=one) for each, one in found if one]
        # The first document in the history is also used for the time before it, because the history
        # no longer has older documents.
        if dated and published[0].generation > 1:
            dated[0] = msgspec.structs.replace(dated[0], since=0.0)
        return dated

    def _document(self, published: Published) -> Document | None:
        generation = published.generation
        if generation not in self._documents:
            try:
                document = load_sources(published.sources, placement=self._placement)
            except ConfigurationError:  # this version cannot read an old document
                self._documents[generation] = None
            else:
                self._documents[generation] = document
        return self._documents[generation]


def _has_costs(document: Document) -> bool:
    return any(pool.cost_per_hour for region in document.regions for pool in region.pools)


async def _resolved(control: Control) -> Mapping[str, int]:
    """Return the present number of backends of each entry with a DNS name, by the entry's id."""
    counts: dict[str, int] = {}
    try:
        seen = await reported_backends(control)
    except DependencyUnavailable:
        return {}
    for name in seen:
        entry, _, address = name.partition("@")
        if address:
            counts[entry] = counts.get(entry, 0) + 1
    return counts
