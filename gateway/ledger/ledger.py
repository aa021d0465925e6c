"""The ledger: accounts, what was used, what it costs, who changed what. All calls block."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from gateway.config.document import PriceEntry
from gateway.errors import InvalidRequest
from gateway.ledger.accounts import Accounts
from gateway.ledger.audit import Audit
from gateway.ledger.invoices import Invoice, make_invoice, month_bounds
from gateway.ledger.prices import PublishedPrices
from gateway.ledger.pricing import PriceList
from gateway.ledger.published import PublishedState
from gateway.ledger.recording import Recording
from gateway.ledger.regional_shares import RegionalShareStore
from gateway.ledger.rollup import Rollup
from gateway.ledger.store import Store, to_nanoseconds
from gateway.ledger.types import Batch, GroupBy, LedgerStatistics, Recorded, UsageRow
from gateway.ledger.usage import UsageQueries, usage_rows
from gateway.types import RequestEvent


class Ledger:
    """The SQL database at `url`; several processes may use it at once, and threads one object.

    Every call raises `DependencyUnavailable` when the database cannot be reached, and may be
    tried again. The tables are made by the first call. `patience` is the seconds that a statement
    may take.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], int] = time.time_ns, patience: float = 10.0
    ) -> None:
        self._store = Store(url, clock=clock, patience=patience)
        self._recording = Recording(self._store)
        self._usage = UsageQueries(self._store)
        self.audit = Audit(self._store)
        self.accounts = Accounts(self._store, self.audit)
        self.shares = RegionalShareStore(self._store)
        self.prices = PublishedPrices(self._store)
        self.rollup = Rollup(self._store)
        self.published = PublishedState(self._store)

    def record(self, log_id: str, high_water: int, events: Sequence[RequestEvent]) -> Recorded:
        """Take in the events of a log of which the last has the sequence number `high_water`."""
        first = high_water - len(events) + 1
        return self.record_batches(
            [Batch(log_id=log_id, first=first, last=high_water, events=events)]
        )

    def record_batches(self, batches: Sequence[Batch]) -> Recorded:
        """Take in several batches in one transaction; see `Recording.record`."""
        return self._recording.record(batches)

    def bury(self, log_id: str, reason: str, payload: bytes) -> None:
        """Keep what could not be read as events."""
        self._recording.bury(log_id, reason, payload)

    def high_water(self, log_ids: Iterable[str]) -> dict[str, int]:
        """Return, per log, up to which sequence number everything is committed; 0 is nothing."""
        return self._recording.high_water(log_ids)

    def usage(
        self,
        tenant: str | None,
        since: datetime,
        until: datetime,
        group_by: Sequence[GroupBy] = (),
        *,
        prices: Sequence[PriceEntry] = (),
        models: Collection[str] | None = None,
    ) -> list[UsageRow]:
        """Return the usage of `tenant` (`None`: of all) from `since` to before `until`.

        With `models` it is the usage of these alone. Requests that were refused before their model
        was known are in no row of a model. It costs what the published prices say; `prices` are
        those of a ledger without any.

        Raises:
            InvalidRequest: a time has no zone, or they are in the wrong order.
        """
        start, end = to_nanoseconds(since), to_nanoseconds(until)
        if end < start:
            raise InvalidRequest("`from` is after `to`")
        groups = list(dict.fromkeys(group_by))
        found = self._usage.priced(
            tenant=tenant,
            since=start,
            until=end,
            group_by=groups,
            prices=self._prices(prices),
            models=models,
        )
        return usage_rows(found, groups)

    def invoice(self, tenant: str, month: str, prices: Sequence[PriceEntry] = ()) -> Invoice:
        """Return the invoice of `tenant` for a month such as `2026-09`, from its events.

        It goes by the published prices; `prices` are those of a ledger without any.

        Raises:
            InvalidRequest: it is no month.
            NotFound: there is no such tenant.
        """
        since, until = month_bounds(month)
        self.accounts.tenant(tenant)
        found = self._usage.priced(
            tenant=tenant, since=since, until=until, group_by=(), prices=self._prices(prices)
        )
        return make_invoice(tenant, month, found)

    def statistics(self) -> LedgerStatistics:
        """Return sums over the whole ledger."""
        return self._recording.statistics()

    def _prices(self, otherwise: Sequence[PriceEntry]) -> PriceList:
        return PriceList(self.prices.entries() or otherwise)

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
