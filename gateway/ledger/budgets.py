"""Stores tenants' monthly budgets, and detects when a month's cost reaches a threshold."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, or_, select, update

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.accounts import tenant_of
from sluicegate.gateway.ledger.audit import Audit
from sluicegate.gateway.ledger.invoices import month_bounds
from sluicegate.gateway.ledger.prices import PublishedPrices
from sluicegate.gateway.ledger.pricing import NANO, PriceList, amount, decimal
from sluicegate.gateway.ledger.principals import record_change
from sluicegate.gateway.ledger.store import Store, to_datetime
from sluicegate.gateway.ledger.types import Budget, BudgetReport, GroupBy, Tenant
from sluicegate.gateway.ledger.usage import priced_usage
from sluicegate.gateway.ledger.usage_marks import HOUR
from sluicegate.gateway.ledger.webhooks import add_delivery

_WHOLE: Final = 100
_AMOUNT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MOST_THRESHOLDS: Final = 10
_HIGHEST: Final = 1000
_TENANTS_PER_QUERY: Final = 1000
_SUMMED_FOR: Final = 900 * 1_000_000_000
"""Nanoseconds for which the cost of a month's earlier hours is cached. An event that arrives late
for one of these hours therefore appears in the cost after this time at the latest."""
_MOST_SUMS: Final = 1000
_log = logging.getLogger(__name__)
_tenants: Final = schema.tenants
_alerts: Final = schema.budget_alerts
_decode: Final = msgspec.json.Decoder(Budget).decode

Costs = Mapping[tuple[str, str], int]
"""Costs by tenant and currency, in 10^-9 of a currency unit."""


class BudgetEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Reports that a tenant's cost has reached a threshold for the first time in a month."""

    tenant: str
    month: str
    threshold: int


class Budgets:
    """Reads and changes budgets. All calls block. Only one thread at a time may call `watch`.

    A tenant's cost is the sum of its invoice before rounding. Costs in other currencies than the
    budget's currency are ignored.
    """

    def __init__(self, store: Store, audit: Audit, prices: PublishedPrices) -> None:
        self._store = store
        self._audit = audit
        self._prices = prices
        # `watch` caches the costs of all tenants with a budget. `status` caches each tenant's cost.
        self._sum_of_all = lru_cache(maxsize=1)(self._former_costs)
        self._sum_of_one = lru_cache(maxsize=_MOST_SUMS)(self._former_costs)
        self._has_warned = False

    def set(
        self,
        tenant: str,
        budget: Budget | None,
        *,
        prices: Sequence[PriceConfig] = (),
        actor: str = "system",
    ) -> Tenant:
        """Replace a tenant's budget; `None` removes it.

        If the tenant's requests were refused because the former budget was used up, they are now
        admitted again, at least until the next call of `watch`.

        Raises:
            NotFound: the tenant does not exist.
            InvalidRequest: the amount or a threshold is invalid, or no price has the budget's
                currency.
        """
        wanted = None if budget is None else self.checked(budget, prices)
        text = None if wanted is None else msgspec.json.encode(wanted).decode()
        own = _tenants.c.id == tenant
        with self._store.writing() as connection:
            row = connection.execute(select(_tenants).where(own).with_for_update()).first()
            if row is None:
                raise NotFound(f"there is no tenant `{tenant[:80]}`")
            if wanted is not None:
                # If the amount changes, every threshold can be reached once more this month.
                is_other = or_(
                    _alerts.c.amount != _nanos(wanted.amount),
                    _alerts.c.currency != wanted.currency,
                )
                connection.execute(delete(_alerts).where(_alerts.c.tenant == tenant, is_other))
            values = {"budget": text, "exhausted_until": None}
            connection.execute(update(_tenants).where(own).values(**values))
            self._audit.add(
                connection,
                actor=actor,
                action="tenant.budget",
                subject=tenant,
                detail={} if wanted is None else msgspec.structs.asdict(wanted),
            )
            record_change(self._store, connection, tenant=tenant)
            changed = connection.execute(select(_tenants).where(own)).one()
            return tenant_of(changed)

    def status(self, tenant: str, prices: Sequence[PriceConfig] = ()) -> BudgetReport | None:
        """Return what is left of a tenant's budget this month, or `None` if there is no budget.

        The cost of a usage event that arrives more than an hour late can be missing for up to 15
        minutes.
        """
        with self._store.reading() as connection:
            text = connection.scalar(select(_tenants.c.budget).where(_tenants.c.id == tenant))
        if text is None:
            return None
        now = self._store.clock()
        budget, month = _decode(text), _month(now)
        own, entries = frozenset({tenant}), tuple(self._prices.entries() or prices)
        slot = now - now % _SUMMED_FOR
        former = self._sum_of_one(own, month, slot, entries)
        spent = self._costs_since(former, own, month, entries).get((tenant, budget.currency), 0)
        whole = _nanos(budget.amount)
        return BudgetReport(
            month=month,
            amount=budget.amount,
            currency=budget.currency,
            thresholds=budget.thresholds,
            refuse=budget.refuse,
            spent=decimal(spent),
            remaining=decimal(max(0, whole - spent)),
        )

    def watch(self) -> list[BudgetEvent]:
        """Compare this month's costs with all budgets; return the newly reached thresholds.

        A threshold is recorded the first time it is reached in a month, and a webhook is queued in
        the same transaction. If a tenant's budget is used up and has `refuse` set, the tenant is
        marked, and workers then refuse the tenant's requests.
        """
        now = self._store.clock()
        month = _month(now)
        query = select(_tenants.c.id, _tenants.c.budget, _tenants.c.exhausted_until)
        with self._store.reading() as connection:
            rows = connection.execute(query.where(_tenants.c.budget.is_not(None))).all()
            noted = select(_alerts.c.tenant, _alerts.c.threshold).where(_alerts.c.month == month)
            sent = {tuple(row) for row in connection.execute(noted)}
        if not rows:
            return []
        costs = self._costs_so_far(frozenset(row.id for row in rows), month, now)
        found: list[BudgetEvent] = []
        for row in rows:
            budget = _decode(row.budget)
            spent = costs.get((row.id, budget.currency), 0)
            reached = [one for one in budget.thresholds if _is_reached(budget, one, spent)]
            new = [one for one in reached if (row.id, one) not in sent]
            is_exhausted = budget.refuse and _is_reached(budget, _WHOLE, spent)
            until = month_bounds(month)[1] if is_exhausted else None
            if new or _later(row.exhausted_until, until, now) != row.exhausted_until:
                found += [
                    BudgetEvent(tenant=row.id, month=month, threshold=threshold)
                    for threshold in self._note(row.id, row.budget, month, new, until, spent)
                ]
        return found

    def _note(
        self,
        tenant: str,
        budget: str,
        month: str,
        thresholds: Sequence[int],
        exhausted_until: int | None,
        spent: int,
    ) -> list[int]:
        """Record the thresholds that were reached, and until when requests are refused.

        Nothing is recorded if the budget has changed since the costs were computed.

        Returns:
            The thresholds that were not recorded before.
        """
        own = _tenants.c.id == tenant
        with self._store.writing() as connection:
            row = connection.execute(select(_tenants).where(own).with_for_update()).first()
            if row is None or row.budget != budget:
                return []
            later = _later(row.exhausted_until, exhausted_until, self._store.clock())
            if later != row.exhausted_until:
                connection.execute(update(_tenants).where(own).values(exhausted_until=later))
                record_change(self._store, connection, tenant=tenant)
            wanted = _decode(budget)
            return [
                threshold
                for threshold in thresholds
                if self._note_threshold(connection, tenant, wanted, month, threshold, spent)
            ]

    def _note_threshold(
        self,
        connection: Connection,
        tenant: str,
        budget: Budget,
        month: str,
        threshold: int,
        spent: int,
    ) -> bool:
        now = self._store.clock()
        row: dict[str, Any] = {"tenant": tenant, "month": month, "threshold": threshold}
        row |= {"time": now, "amount": _nanos(budget.amount), "currency": budget.currency}
        if not self._store.insert_new(connection, _alerts, [row]):
            return False
        kind = "budget.reached" if threshold == _WHOLE else "budget.threshold_reached"
        data = {
            "month": month,
            "threshold": threshold,
            "amount": budget.amount,
            "currency": budget.currency,
            "spent": decimal(spent),
        }
        add_delivery(connection, tenant, kind, data, now=now)
        return True

    def _costs_so_far(self, tenants: frozenset[str], month: str, now: int) -> Costs:
        entries = tuple(self._prices.entries())
        if not entries and not self._has_warned:
            _log.warning(
                "no price is published, so no budget is ever reached: start a gateway, which"
                " publishes the prices of its document"
            )
        self._has_warned = not entries
        former = self._sum_of_all(tenants, month, now - now % _SUMMED_FOR, entries)
        return self._costs_since(former, tenants, month, entries)

    def _former_costs(
        self, tenants: frozenset[str], month: str, slot: int, entries: tuple[PriceConfig, ...]
    ) -> tuple[int, Costs]:
        """Return the month's costs until an hour before `slot`.

        The result's first value is the time until which the costs are summed. This time is the end
        of an hour, or the beginning of the month.
        """
        since = month_bounds(month)[0]
        until = max(since, slot - slot % HOUR - HOUR)
        return until, self._costs(tenants, since, until, PriceList(entries))

    def _costs_since(
        self,
        former: tuple[int, Costs],
        tenants: frozenset[str],
        month: str,
        entries: tuple[PriceConfig, ...],
    ) -> Costs:
        """Return a month's costs: the `former` costs plus the costs since the end of their time."""
        since, costs = former
        recent = self._costs(tenants, since, month_bounds(month)[1], PriceList(entries))
        return {key: costs.get(key, 0) + recent.get(key, 0) for key in {*costs, *recent}}

    def _costs(
        self, tenants: Collection[str], since: int, until: int, prices: PriceList
    ) -> dict[tuple[str, str], int]:
        costs: dict[tuple[str, str], int] = {}
        if since >= until:
            return costs
        for each in priced_usage(
            self._store,
            tenants=tenants if len(tenants) <= _TENANTS_PER_QUERY else None,
            since=since,
            until=until,
            group_by=[GroupBy.TENANT],
            prices=prices,
        ):
            key = (each.group[0], each.price.entry.currency)
            costs[key] = costs.get(key, 0) + amount(each.units, each.price.entry)
        return costs

    def checked(self, budget: Budget, prices: Sequence[PriceConfig]) -> Budget:
        """Check a budget; return a copy with sorted thresholds and with a currency.

        Raises:
            InvalidRequest: the amount or a threshold is invalid, or no price has the budget's
                currency.
        """
        if not _AMOUNT.fullmatch(budget.amount) or not _nanos(budget.amount):
            raise InvalidRequest(
                f"`amount`: `{budget.amount[:40]}` is not a positive amount such as `250.00`; use"
                " at most 9 digits before and after the decimal point"
            )
        thresholds = tuple(sorted(set(budget.thresholds)))
        if len(thresholds) > _MOST_THRESHOLDS or any(
            not 1 <= one <= _HIGHEST for one in thresholds
        ):
            raise InvalidRequest(
                f"`thresholds` must be at most {_MOST_THRESHOLDS} percentages from 1 to {_HIGHEST}"
            )
        known = sorted({entry.currency for entry in self._prices.entries() or prices})
        currency = budget.currency or (known[0] if len(known) == 1 else "")
        if currency not in known:
            raise InvalidRequest(
                f"`currency` must be the currency of a price: {', '.join(known) or 'none so far'}"
            )
        return msgspec.structs.replace(budget, thresholds=thresholds, currency=currency)


def _later(mark: int | None, other: int | None, now: int) -> int | None:
    """Return the later of two times until which requests are refused, or `None` if both are past.

    A process that has read fewer events than another process computes a lower cost. It must not end
    a refusal that the other process has begun, because a month's cost only grows.
    """
    later = max(mark or 0, other or 0)
    return later if later > now else None


def _is_reached(budget: Budget, threshold: int, spent: int) -> bool:
    return spent * _WHOLE >= _nanos(budget.amount) * threshold


def _nanos(text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole) * NANO + int(fraction.ljust(9, "0"))


def _month(now: int) -> str:
    return to_datetime(now).astimezone(UTC).strftime("%Y-%m")
