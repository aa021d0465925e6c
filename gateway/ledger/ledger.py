"""Opens the ledger: the SQL database of tenants, API keys, usage, prices and audit entries."""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Self

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.accounts import Accounts
from sluicegate.gateway.ledger.affected_tenants import AffectedTenants
from sluicegate.gateway.ledger.audit import Audit
from sluicegate.gateway.ledger.batches import BatchStore
from sluicegate.gateway.ledger.budgets import Budgets
from sluicegate.gateway.ledger.dead_letters import DeadLetters
from sluicegate.gateway.ledger.files import FileStore
from sluicegate.gateway.ledger.invoices import make_invoice, month_bounds
from sluicegate.gateway.ledger.operators import OperatorStore
from sluicegate.gateway.ledger.past_requests import find_request, find_requests
from sluicegate.gateway.ledger.prices import PublishedPrices
from sluicegate.gateway.ledger.pricing import PriceList
from sluicegate.gateway.ledger.principals import PrincipalReader
from sluicegate.gateway.ledger.published import PublishedState
from sluicegate.gateway.ledger.recording import EventRecorder
from sluicegate.gateway.ledger.regional_shares import RegionalShareStore
from sluicegate.gateway.ledger.revision_usage import revision_costs
from sluicegate.gateway.ledger.rollup import Rollup
from sluicegate.gateway.ledger.serving_plans import ServingPlanStore
from sluicegate.gateway.ledger.store import Store, to_nanoseconds
from sluicegate.gateway.ledger.tenant_pages import TenantPages
from sluicegate.gateway.ledger.types import GroupBy, GroupUsage, Invoice, PastRequest, RevisionCost
from sluicegate.gateway.ledger.usage import priced_usage, usage_by_group
from sluicegate.gateway.ledger.webhooks import DeliveryStore


class Ledger:
    """Gives access to the ledger in the SQL database at `url`. Several threads can use it.

    All calls block. Every call raises `DependencyUnavailable` if the database cannot be reached.
    The caller can then repeat the call. If the database has no ledger, `create` makes one, and
    every other call raises `LedgerEmpty`. A statement fails after `timeout` seconds.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], int] = time.time_ns, timeout: float = 10.0
    ) -> None:
        self._store = Store(url, clock=clock, timeout=timeout)
        self.recorder = EventRecorder(self._store)
        self.audit = Audit(self._store)
        self.accounts = Accounts(self._store, self.audit)
        self.tenant_pages = TenantPages(self._store)
        self.dead_letters = DeadLetters(self._store, self.audit, self.recorder)
        self.affected_tenants = AffectedTenants(self._store)
        self.principals = PrincipalReader(self._store)
        self.operators = OperatorStore(self._store, self.audit)
        self.shares = RegionalShareStore(self._store)
        self.prices = PublishedPrices(self._store)
        self.budgets = Budgets(self._store, self.audit, self.prices)
        self.rollup = Rollup(self._store)
        self.published = PublishedState(self._store)
        self.plans = ServingPlanStore(self._store, self.audit)
        self.files = FileStore(self._store)
        self.batches = BatchStore(self._store)
        self.deliveries = DeliveryStore(self._store)

    @classmethod
    def create(
        cls, url: str, *, clock: Callable[[], int] = time.time_ns, timeout: float = 10.0
    ) -> Self:
        """Return the ledger at `url`; create a ledger first if the database has none.

        Raises:
            DependencyUnavailable: the database cannot be reached, or a restore from a backup has
                not finished.
        """
        ledger = cls(url, clock=clock, timeout=timeout)
        try:
            ledger._store.create()
        except BaseException:  # the caller gets no object that it could close
            ledger.close()
            raise
        return ledger

    def check(self) -> None:
        """Migrate the tables to the newest schema.

        Raises:
            LedgerEmpty: the database has no ledger.
            DependencyUnavailable: the database cannot be reached.
        """
        self._store.check()

    def usage(
        self,
        tenant: str | None,
        since: datetime,
        until: datetime,
        group_by: Sequence[GroupBy] = (),
        *,
        prices: Sequence[PriceConfig] = (),
        models: Collection[str] | None = None,
        tenants: Collection[str] | None = None,
    ) -> list[GroupUsage]:
        """Return the usage of one or several tenants, from `since` to before `until`.

        `tenant` selects one tenant. If it is `None`, `tenants` selects several tenants. If both are
        `None`, the result includes all tenants. If `models` is `None`, the result includes all
        models.

        If usage is grouped by model, requests that were refused before their model was known are
        left out. Cost is computed with the published prices, or with `prices` if no price is
        published.

        Raises:
            InvalidRequest: a time has no time zone, or `since` is after `until`.
        """
        start, end = to_nanoseconds(since), to_nanoseconds(until)
        if end < start:
            raise InvalidRequest("`from` is after `to`")
        groups = list(dict.fromkeys(group_by))
        found = priced_usage(
            self._store,
            tenants=tenants if tenant is None else [tenant],
            since=start,
            until=end,
            group_by=groups,
            prices=self._price_list(prices),
            models=models,
            adds_up_models=True,
        )
        return usage_by_group(found, groups)

    def request(
        self, tenant: str, request_id: str, *, models: Collection[str] | None = None
    ) -> PastRequest | None:
        """Return the recorded request with this id.

        Return `None` if no request has this id, if another tenant sent it, or if its model is not
        in `models`.
        """
        return find_request(self._store, tenant, request_id, models=models)

    def requests(
        self, tenant: str, client_id: str, *, models: Collection[str] | None = None
    ) -> list[PastRequest]:
        """Return the tenant's requests to which the caller gave this id, newest first.

        At most 100 requests are returned, and only those whose model is in `models`.
        """
        return find_requests(self._store, tenant, client_id, models=models)

    def revision_costs(
        self, model: str, revision: str, prices: Sequence[PriceConfig] = ()
    ) -> list[RevisionCost]:
        """Return the usage and the cost of each revision in a traffic split.

        `model` and `revision` select the usage events with these values. In the result, `arm` is
        the number of a revision in the traffic split.

        Cost is computed with the published prices, or with `prices` if no price is published.
        """
        return revision_costs(self._store, model, revision, self._price_list(prices))

    def invoice(self, tenant: str, month: str, prices: Sequence[PriceConfig] = ()) -> Invoice:
        """Return the invoice of `tenant` for a month such as `2026-09`.

        Cost is computed with the published prices, or with `prices` if no price is published.

        Raises:
            InvalidRequest: `month` does not have the form of `2026-09`.
            NotFound: the tenant does not exist.
        """
        since, until = month_bounds(month)
        self.accounts.tenant(tenant)
        found = priced_usage(
            self._store,
            tenants=[tenant],
            since=since,
            until=until,
            group_by=(),
            prices=self._price_list(prices),
        )
        return make_invoice(tenant, month, found)

    def _price_list(self, default: Sequence[PriceConfig]) -> PriceList:
        return PriceList(self.prices.entries() or default)

    def server_time(self) -> float | None:
        """Return the database server's Unix time in seconds, or `None` for SQLite.

        Raises:
            DependencyUnavailable: the database does not answer.
        """
        return self._store.server_time()

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
