"""Sums usage by revision, for models whose traffic is split between several revisions."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, func, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.pricing import PriceList, amount, decimal
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.types import RevisionCost, Units
from sluicegate.gateway.ledger.usage_fields import OUTCOMES
from sluicegate.gateway.ledger.usage_marks import HOUR
from sluicegate.gateway.types import RequestEvent

_KEY: Final = ("time", "model", "revision", "arm", "shadow")
_table: Final = schema.revision_usage


def add_revision_usage(
    store: Store, connection: Connection, events: Iterable[RequestEvent]
) -> None:
    """In the transaction that records `events`, update the sums of usage of each revision."""
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    for event in events:
        for usage in event.arms:
            hour = event.time - event.time % HOUR
            key = (hour, event.model, event.revision, usage.arm, usage.shadow)
            found = sums.setdefault(key, Counter())
            for name in OUTCOMES:
                found[name] += getattr(usage, name) * event.count
    # Sorted, so that concurrent transactions lock rows in the same order and cannot deadlock.
    rows = [dict(zip(_KEY, key, strict=True)) | dict(sums[key]) for key in sorted(sums)]
    if rows:
        store.add_to(connection, _table, rows, OUTCOMES)


def revision_costs(
    store: Store, model: str, revision: str, prices: PriceList
) -> list[RevisionCost]:
    """Return the usage and the cost of each revision in a traffic split.

    `model` and `revision` select the usage events with these values. In the result, `arm` is the
    number of a revision in the traffic split.
    """
    key = (_table.c.time, _table.c.arm)
    query = (
        select(*key, *(func.sum(_table.c[name]) for name in OUTCOMES))
        .where(_table.c.model == model, _table.c.revision == revision)
        .group_by(*key)
    )
    with store.reading() as connection:
        rows = [tuple(row) for row in connection.execute(query)]
    found: dict[tuple[str, str], tuple[Units, int]] = {}
    for time, number, *sums in rows:
        price = prices.at(model, int(time)).entry
        units = Units(**dict(zip(OUTCOMES, map(int, sums), strict=True)))
        before, cost = found.get((number, price.currency), (Units(), 0))
        found[number, price.currency] = (before + units, cost + amount(units, price))
    return [
        RevisionCost(
            arm=number,
            **{name: getattr(units, name) for name in OUTCOMES},
            cost=decimal(cost),
            currency=currency,
        )
        for (number, currency), (units, cost) in sorted(found.items())
    ]
