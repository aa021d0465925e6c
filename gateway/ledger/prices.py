"""The prices that were published, by date: one that has begun never changes."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select

from gateway.config.document import PriceEntry
from gateway.errors import ConfigurationError
from gateway.ledger import schema
from gateway.ledger.pricing import PriceList, starts_at
from gateway.ledger.store import Store

_FREE: Final = PriceEntry()
_FIELDS: Final = PriceEntry.__struct_fields__
# No document can name such a model: it stands for every model without a price of its own.
_UNNAMED: Final = ""
_TURNS: Final = "prices"


class PublishedPrices:
    """Keeps the prices of published documents; usage and invoices go by these alone.

    A price that has begun cannot be edited or removed. One that begins in the past is taken where
    no usage would cost anything else by it. Those that have not begun follow the documents.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def entries(self) -> list[PriceEntry]:
        """Return the prices by date."""
        with self._store.reading() as connection:
            return _kept(connection)

    def check(self, wanted: Sequence[PriceEntry]) -> None:
        """Check that a document with the prices `wanted` may be published.

        Raises:
            ConfigurationError: the past would cost something else.
        """
        with self._store.reading() as connection:
            _check(connection, _kept(connection), wanted, self._store.clock())

    def publish(
        self,
        wanted: Sequence[PriceEntry],
        *,
        former: Sequence[PriceEntry] = (),
        agreed: int | None = None,
    ) -> None:
        """Keep the prices of a document that is published in place of one with `former` prices.

        Of those to come that are not in `wanted`, the ones in `former` are dropped; others are of
        another gateway region. `agreed` is when the document was published, if that was before:
        what was to come then may have begun, as where the ledger was restored from a backup.

        Raises:
            ConfigurationError: the past would cost something else; nothing changed.
        """
        now, table = self._store.clock(), schema.published_prices
        with self._store.writing() as connection:
            # Gateways that start at once publish the same.
            self._store.take_turns(connection, _TURNS)
            kept = _kept(connection)
            _check(connection, kept, wanted, now, agreed=agreed)
            dates = {_date(entry) for entry in (*wanted, *former)}
            for old in set(kept) - set(wanted):
                if _date(old) in dates:
                    same = (table.c.model == old.model) & (table.c.since == old.since)
                    connection.execute(delete(table).where(same))
            new = [_values(entry) for entry in wanted if entry not in set(kept)]
            if new:
                connection.execute(insert(table), [row | {"published": now} for row in new])
                history = [row | {"recorded": now} for row in new]
                self._store.insert_new(connection, schema.prices, history)

    def history(self) -> list[tuple[int, PriceEntry]]:
        """Return every price that was ever published, with when it was, oldest first."""
        table = schema.prices
        with self._store.reading() as connection:
            rows = connection.execute(select(table).order_by(table.c.recorded, table.c.model))
            return [(row.recorded, _entry(row)) for row in rows]


def _check(
    connection: Connection,
    kept: Sequence[PriceEntry],
    wanted: Sequence[PriceEntry],
    now: int,
    *,
    agreed: int | None = None,
) -> None:
    """Raise `ConfigurationError` where `wanted`, `agreed` then, changes what the past costs."""
    if not kept:  # the first document, or the first one that is kept here
        return
    _check_begun(kept, wanted, now)
    past = now if agreed is None else min(agreed, now)
    late = [entry for entry in {*wanted} ^ {*kept} if starts_at(entry) <= past]
    if not late:
        return
    # No event is of a time before the epoch, and SQL cannot hold all of those.
    since = max(0, min(map(starts_at, late)))
    model = _affected(connection, kept, wanted, since=since, until=now + 1)
    if model is not None:
        first = min(late, key=starts_at)
        raise ConfigurationError(
            f"the price of `{first.model}` from {first.since} on would change what usage of"
            f" `{model}` has cost already: give it a date to come",
            field="prices",
        )


def _check_begun(kept: Iterable[PriceEntry], wanted: Iterable[PriceEntry], now: int) -> None:
    """Raise `ConfigurationError` unless all of `kept` that has begun is in `wanted` as it is."""
    by_date = {(entry.model, entry.since): entry for entry in wanted}
    for old in kept:
        new = by_date.get((old.model, old.since))
        # The price of documents without prices is nobody's decision, and may be replaced.
        if old in (new, _FREE) or starts_at(old) > now:
            continue
        change = "removed" if new is None else f"changed ({_difference(old, new)})"
        raise ConfigurationError(
            f"the price of `{old.model}` from {old.since} on has begun and cannot be {change}:"
            " leave it, and add one with a date to come",
            field="prices",
        )


def _affected(
    connection: Connection,
    kept: Sequence[PriceEntry],
    wanted: Sequence[PriceEntry],
    *,
    since: int,
    until: int,
) -> str | None:
    """Return a model with usage that would cost something else under `wanted`."""
    old, new = PriceList(kept), PriceList(wanted)
    edges = {e for prices in (old, new) for p in prices.periods(since, until) for e in p}
    named = {entry.model for entry in (*kept, *wanted)} | {_UNNAMED}
    events = schema.usage_events.c
    for start, end in pairwise(sorted(edges)):
        if not any(_differ(old, new, model, start) for model in named):
            continue
        used = select(events.model).distinct().where(events.time >= start, events.time < end)
        for model in connection.scalars(used):
            if _differ(old, new, model, start):
                return str(model)
    return None


def _differ(old: PriceList, new: PriceList, model: str, time: int) -> bool:
    costs = [_values(prices.at(model, time).entry) for prices in (old, new)]
    return any(costs[0][name] != costs[1][name] for name in _FIELDS[2:])


def _difference(old: PriceEntry, new: PriceEntry) -> str:
    changed = [name for name in _FIELDS if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"`{n}` from {getattr(old, n)} to {getattr(new, n)}" for n in changed)


def _kept(connection: Connection) -> list[PriceEntry]:
    table = schema.published_prices
    query = select(table).order_by(table.c.since, table.c.model)
    return [_entry(row) for row in connection.execute(query)]


def _date(entry: PriceEntry) -> tuple[str, str]:
    return entry.model, entry.since


def _values(entry: PriceEntry) -> dict[str, object]:
    return msgspec.structs.asdict(entry)


def _entry(row: Row[Any]) -> PriceEntry:
    return PriceEntry(**{name: getattr(row, name) for name in _FIELDS})
