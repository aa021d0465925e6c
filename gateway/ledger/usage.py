"""Sums usage from the events, and computes its cost."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, case, func, select

from backends.protocol import TOKEN_TASKS
from gateway.ledger import schema
from gateway.ledger.pricing import Price, PriceList, amount, decimal
from gateway.ledger.rollup import HOUR
from gateway.ledger.store import Store, to_datetime
from gateway.ledger.types import GroupBy, GroupUsage, Units

_DAY: Final = 24 * HOUR
_LENGTHS: Final = {GroupBy.DAY: _DAY, GroupBy.HOUR: HOUR}
_events: Final = schema.usage_events.c
_SUMMED: Final = Units.__struct_fields__
_is_free: Final = case((_events.task.in_([str(task) for task in TOKEN_TASKS]), 1), else_=0)


class PricedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds units of one model under one price; `group` has the values of `group_by`."""

    group: tuple[str, ...]
    model: str
    price: Price
    units: Units


def priced_usage(
    store: Store,
    *,
    tenants: Collection[str] | None,
    since: int,
    until: int,
    group_by: Sequence[GroupBy],
    prices: PriceList,
    models: Collection[str] | None = None,
) -> list[PricedUsage]:
    """Return usage of `tenants` and `models` (`None`: all) by group, model and price.

    It is of the time from `since` to before `until`, both in nanoseconds.
    """
    found: list[PricedUsage] = []
    for start, end in prices.periods(since, until):
        for row in _rows(store, tenants, start, end, group_by, models):
            *group, model, is_batch, is_free = row[: len(group_by) + 3]
            sums = dict(zip(_SUMMED, map(int, row[len(group_by) + 3 :]), strict=True))
            price = prices.at(model, start)
            if is_free:
                price = price.for_tokens()
            elif is_batch:
                price = price.for_batches()
            found.append(
                PricedUsage(
                    group=tuple(_label(g, v) for g, v in zip(group_by, group, strict=True)),
                    model=model,
                    price=price,
                    units=Units(**sums),
                )
            )
    return found


def _rows(
    store: Store,
    tenants: Collection[str] | None,
    since: int,
    until: int,
    group_by: Sequence[GroupBy],
    models: Collection[str] | None,
) -> list[Sequence[Any]]:
    groups = [*(_column(g) for g in group_by), _events.model, _events.batch, _is_free]
    sums = [func.coalesce(func.sum(_events[name]), 0) for name in _SUMMED]
    query = (
        select(*groups, *sums)
        .where(_events.time >= since, _events.time < until)
        .group_by(*groups)
        .order_by(*groups)
    )
    if tenants is not None:
        query = query.where(_events.tenant.in_(tenants))
    if models is not None:
        query = query.where(_events.model.in_(models))
    if GroupBy.MODEL in group_by:
        query = query.where(_events.model != "")
    with store.reading() as connection:
        return [tuple(row) for row in connection.execute(query)]


def usage_by_group(found: Sequence[PricedUsage], group_by: Sequence[GroupBy]) -> list[GroupUsage]:
    """Add up priced usage per group; a group with prices in two currencies has two rows."""
    sums: dict[tuple[tuple[str, ...], str], tuple[Units, int]] = {}
    for each in found:
        place = (each.group, each.price.entry.currency)
        units, cost = sums.get(place, (Units(), 0))
        sums[place] = (units + each.units, cost + amount(each.units, each.price.entry))
    rows = []
    for (group, currency), (units, cost) in sorted(sums.items(), key=lambda item: item[0]):
        labels = {g.value: label for g, label in zip(group_by, group, strict=True)}
        fields = msgspec.structs.asdict(units) | labels
        rows.append(GroupUsage(**fields, cost=decimal(cost), currency=currency))
    return rows


def _column(group: GroupBy) -> ColumnElement[Any]:
    length = _LENGTHS.get(group)
    return _events[group.value] if length is None else _events.time // length


def _label(group: GroupBy, value: Any) -> str:
    if group is GroupBy.DAY:
        return to_datetime(int(value) * _DAY).date().isoformat()
    if group is GroupBy.HOUR:
        return to_datetime(int(value) * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
