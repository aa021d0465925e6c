"""What the API's handlers see of the worker's parts: documents, usage, readiness."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from gateway.api.health import Readiness, ReadinessSource
from gateway.api.metadata import UsageLine
from gateway.app.principals import PrincipalsFollower
from gateway.config.document import Document
from gateway.draining import DRAINING, Draining
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import GroupBy, UsageRow
from gateway.routing.fleet import Fleet
from gateway.runtime.store import RuntimeStore
from gateway.types import TenantId


class CurrentDocument:
    """The document of the current runtime."""

    def __init__(self, runtimes: RuntimeStore) -> None:
        self._runtimes = runtimes

    def document(self) -> Document:
        """Return it."""
        return self._runtimes.current.document


class LedgerUsage:
    """Usage as the ledger has it, priced by the current document."""

    def __init__(self, ledger: Ledger, runtimes: RuntimeStore) -> None:
        self._ledger = ledger
        self._runtimes = runtimes

    def report(
        self, tenant: TenantId, since: datetime, until: datetime, group_by: Sequence[str]
    ) -> list[UsageLine]:
        """Return the tenant's usage, a line per group; blocks."""
        groups = [GroupBy(name) for name in group_by]
        rows = self._ledger.usage(
            tenant, since, until, groups, prices=self._runtimes.current.document.prices
        )
        return [_line(row, groups) for row in rows]


class WorkerReadiness:
    """A worker is ready when it knows keys and a backend that is ready."""

    def __init__(self, *, principals: PrincipalsFollower, fleet: Fleet) -> None:
        self._principals = principals
        self._fleet = fleet

    def readiness(self) -> Readiness:
        """Return what is missing, and which backends do not answer."""
        statistics = self._fleet.statistics()
        missing = [] if self._principals.is_loaded else ["keys: the SQL store was never reached"]
        ready = [one for one in statistics if one.health == "ready"]
        if not ready:
            missing.append("backends: none is ready")
        degraded = [
            f"{one.region}/{one.backend}: {', '.join(one.missing) or one.health}"
            for one in statistics
            if one.health != "ready" or one.missing
        ]
        return Readiness(ready=not missing, missing=missing, degraded=degraded)


class ReadinessUntilDraining:
    """The readiness of a worker, which is not ready once its gateway is stopping."""

    def __init__(self, source: ReadinessSource, draining: Draining) -> None:
        self._source = source
        self._draining = draining

    def readiness(self) -> Readiness:
        """Return what is missing."""
        readiness = self._source.readiness()
        if not self._draining.is_announced:
            return readiness
        missing = [DRAINING, *readiness.missing]
        return msgspec.structs.replace(readiness, ready=False, missing=missing)


def _line(row: UsageRow, groups: Sequence[GroupBy]) -> UsageLine:
    values = msgspec.structs.asdict(row)
    return UsageLine(
        group={group.value: str(values[group.value]) for group in groups},
        cost=row.cost,
        currency=row.currency,
        **msgspec.structs.asdict(row.units),
    )
