"""Computes usage and its cost from events and from stored sums."""

from collections.abc import Collection, Sequence
from operator import add, itemgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, case, func, or_, select, union_all

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.pricing import Price, PriceList, amount, decimal
from sluicegate.gateway.ledger.store import Store, to_datetime
from sluicegate.gateway.ledger.types import GroupBy, GroupUsage, Units
from sluicegate.gateway.ledger.usage_fields import SUMMED
from sluicegate.gateway.ledger.usage_marks import DAY, HOUR
from sluicegate.gateway.ledger.usage_sources import Blocks, sources_of
from sluicegate.gateway.ledger.usage_totals import (
    ALL_TENANTS,
    HOURS_OF_DAY,
    is_free,
    is_outside_totals,
)

_LENGTHS: Final = {GroupBy.DAY: DAY, GroupBy.HOUR: HOUR}
_events: Final = schema.usage_events.c
_totals: Final = schema.usage_totals.c

_HOURS: Final = {GroupBy.DAY: HOURS_OF_DAY, GroupBy.HOUR: 1}


class PricedUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds the usage of one model at one price, within one group.

    `group` has one value for each field by which the query groups usage.
    """

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
    adds_up_models: bool = False,
) -> list[PricedUsage]:
    """Return the usage of `tenants` and `models` by group, model and price.

    `None` stands for all tenants or all models. `since` and `until` (exclusive) are Unix times in
    nanoseconds.

    With `adds_up_models`, models without a price of their own are added up under an empty model
    name, so that the query returns fewer rows. The argument has no effect if usage is grouped by
    model.
    """
    found: list[PricedUsage] = []
    count = len(group_by)
    named = prices.models if adds_up_models and GroupBy.MODEL not in group_by else None
    for start, end in prices.periods(since, until):
        # Caches, because many rows share a few labels and prices.
        labels = [_Labels(group) for group in group_by]
        price_of = _PeriodPrices(prices, start)
        for row in _rows(store, tenants, start, end, group_by, models, named):
            group = tuple([labels[place][row[place]] for place in range(count)])
            model = row[count]
            units = Units(**dict(zip(SUMMED, map(int, row[count + 3 :]), strict=True)))
            price = price_of[(model, row[count + 1], row[count + 2])]
            found.append(PricedUsage(group=group, model=model, price=price, units=units))
    return found


class _Labels(dict[Any, str]):
    """Caches the label of each value by which usage is grouped, such as the date of a day."""

    def __init__(self, group: GroupBy) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, value: Any) -> str:
        label = self[value] = _label(self._group, value)
        return label


class _PeriodPrices(dict[tuple[str, int, int], Price]):
    """Caches the price at `start`.

    The price depends on the model, on `batch`, and on whether the usage is free.
    """

    def __init__(self, prices: PriceList, start: int) -> None:
        super().__init__()
        self._prices = prices
        self._start = start

    def __missing__(self, kind: tuple[str, int, int]) -> Price:
        model, is_batch, is_free_task = kind
        price = self._prices.at(model, self._start)
        if is_free_task:
            price = price.for_tokens()
        elif is_batch:
            price = price.for_batches()
        self[kind] = price
        return price


def _rows(
    store: Store,
    tenants: Collection[str] | None,
    since: int,
    until: int,
    group_by: Sequence[GroupBy],
    models: Collection[str] | None,
    named: Collection[str] | None,
) -> Sequence[Sequence[Any]]:
    with store.snapshot() as connection:
        sources = sources_of(connection, since, until, group_by)
        queries = [_events_between(*span, tenants, group_by, models) for span in sources.events]
        if sources.blocks:
            if connection.dialect.name == "postgresql" and not sources.outside:
                # Starting processes takes longer than reading totals.
                connection.exec_driver_sql("SET LOCAL max_parallel_workers_per_gather = 0")
            queries.append(_totals_of(sources.blocks, tenants, group_by, models))
        # Events of older programs, which the totals do not include yet.
        more = [_events_between(*span, tenants, group_by, models) for span in sources.outside]
        queries += [query.where(is_outside_totals) for query in more]
        if not queries:  # `since` equals `until`
            return []
        return connection.execute(_added_up(queries, group_by, named)).all()


def _events_between(
    since: int,
    until: int,
    tenants: Collection[str] | None,
    group_by: Sequence[GroupBy],
    models: Collection[str] | None,
) -> Select[Any]:
    groups = [*(_column(g) for g in group_by), _events.model, _events.batch, is_free]
    query = select(*groups, *(_events[name] for name in SUMMED))
    query = query.where(_events.time >= since, _events.time < until)
    if tenants is not None:
        query = query.where(_events.tenant.in_(tenants))
    return _of_models(query, _events.model, group_by, models)


def _totals_of(
    blocks: Sequence[Blocks],
    tenants: Collection[str] | None,
    group_by: Sequence[GroupBy],
    models: Collection[str] | None,
) -> Select[Any]:
    groups = [_totals.hour // _HOURS[g] if g in _HOURS else _totals[g.value] for g in group_by]
    kind = (_totals.model, _totals.batch, _totals.is_free)
    query = select(*groups, *kind, *(_totals[name] for name in SUMMED))
    of_tenants = tenants is not None or GroupBy.TENANT not in group_by
    query = query.where(or_(*(each.are_those(of_tenants=of_tenants) for each in blocks)))
    if tenants is not None:
        query = query.where(_totals.tenant.in_({*tenants} - {ALL_TENANTS}))
    elif GroupBy.TENANT in group_by:
        query = query.where(_totals.tenant != ALL_TENANTS)
    else:
        query = query.where(_totals.tenant == ALL_TENANTS)
    return _of_models(query, _totals.model, group_by, models)


def _of_models(
    query: Select[Any],
    model: ColumnElement[Any],
    group_by: Sequence[GroupBy],
    models: Collection[str] | None,
) -> Select[Any]:
    if models is not None:
        query = query.where(model.in_(models))
    return query.where(model != "") if GroupBy.MODEL in group_by else query


def _added_up(
    queries: Sequence[Select[Any]], group_by: Sequence[GroupBy], named: Collection[str] | None
) -> Select[Any]:
    # Columns are labelled by position, because two columns are called `model` if usage is grouped
    # by model.
    count = len(group_by) + 3
    labels = [f"c{place}" for place in range(count + len(SUMMED))]
    labelled = [_labelled(query, labels, len(group_by), named) for query in queries]
    whole = (union_all(*labelled) if len(labelled) > 1 else labelled[0]).subquery()
    groups = [whole.c[label] for label in labels[:count]]
    sums = [func.coalesce(func.sum(whole.c[label]), 0) for label in labels[count:]]
    return select(*groups, *sums).group_by(*groups).order_by(*groups)


def _labelled(
    query: Select[Any], labels: Sequence[str], model: int, named: Collection[str] | None
) -> Select[Any]:
    """Return `query` with its columns renamed to `labels`.

    The column at the index `model` holds names of models. If `named` is set, the column is empty
    for models that are not in `named`.
    """
    columns: list[ColumnElement[Any]] = list(query.selected_columns)
    if named is not None:
        own = columns[model]
        columns[model] = case((own.in_(named), own), else_="")
    return query.with_only_columns(
        *(c.label(label) for c, label in zip(columns, labels, strict=True))
    )


def usage_by_group(found: Sequence[PricedUsage], group_by: Sequence[GroupBy]) -> list[GroupUsage]:
    """Add up priced usage by group and currency.

    A group with several currencies has several rows.
    """
    sums: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for each in found:
        place = (each.group, each.price.entry.currency)
        cost = amount(each.units, each.price.entry)
        values = (*msgspec.structs.astuple(each.units), cost)
        former = sums.get(place)
        sums[place] = [*values] if former is None else [*map(add, former, values)]
    rows = []
    names = [*Units.__struct_fields__, *(group.value for group in group_by)]
    for (group, currency), (*units, cost) in sorted(sums.items(), key=itemgetter(0)):
        fields: dict[str, Any] = dict(zip(names, (*units, *group), strict=True))
        rows.append(GroupUsage(**fields, cost=decimal(cost), currency=currency))
    return rows


def _column(group: GroupBy) -> ColumnElement[Any]:
    length = _LENGTHS.get(group)
    return _events[group.value] if length is None else _events.time // length


def _label(group: GroupBy, value: Any) -> str:
    if group is GroupBy.DAY:
        return to_datetime(int(value) * DAY).date().isoformat()
    if group is GroupBy.HOUR:
        return to_datetime(int(value) * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
