"""Stores the published prices. A price that has taken effect never changes."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import asdict
from sqlalchemy import Connection, Row, delete, insert, select

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.pricing import PriceList, starts_at
from sluicegate.gateway.ledger.store import Store

_FREE: Final = PriceConfig()
_FIELDS: Final = PriceConfig.__struct_fields__
# Stands for every model that has no price of its own. No model can have this name.
_UNNAMED: Final = ""
_LOCK: Final = "prices"


class PublishedPrices:
    """Stores the prices of published configuration documents.

    If there are published prices, usage and invoices are computed only with these.

    A price that has taken effect cannot be edited or removed. A new price can start in the past if
    it does not change the cost of recorded usage. The future prices of a newly published document
    replace the future prices of the former document.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def entries(self) -> list[PriceConfig]:
        """Return the prices, sorted by the date from which they apply."""
        with self._store.reading() as connection:
            return _stored(connection)

    def check(self, wanted: Sequence[PriceConfig]) -> None:
        """Check that a configuration document with the prices `wanted` can be published.

        Raises:
            ConfigurationError: the document would change a price that is in effect, or the cost of
                past usage.
        """
        with self._store.reading() as connection:
            _check(connection, _stored(connection), wanted, self._store.clock())

    def publish(
        self,
        wanted: Sequence[PriceConfig],
        *,
        former: Sequence[PriceConfig] = (),
        agreed: int | None = None,
    ) -> None:
        """Store `wanted`, the prices of a configuration document that is being published.

        `former` are the prices of the region's former document. Future prices that are in `former`
        but not in `wanted` are deleted. Other future prices stay, because another gateway region
        published them.

        `agreed` is the time at which the document was first published. After the ledger was
        restored from a backup, a gateway publishes its document again. Prices that were in the
        future at the time `agreed` are then accepted, even if they have taken effect since.

        Raises:
            ConfigurationError: the document would change a price that is in effect, or the cost of
                past usage. Nothing was stored.
        """
        now, table = self._store.clock(), schema.published_prices
        with self._store.writing() as connection:
            # A lock, because gateways that start at the same time publish the same prices.
            self._store.lock_subject(connection, _LOCK)
            stored = _stored(connection)
            _check(connection, stored, wanted, now, agreed=agreed)
            dates = {(entry.model, entry.since) for entry in (*wanted, *former)}
            for old in set(stored) - set(wanted):
                if (old.model, old.since) in dates:
                    same = (table.c.model == old.model) & (table.c.since == old.since)
                    connection.execute(delete(table).where(same))
            new = [asdict(entry) for entry in wanted if entry not in set(stored)]
            if new:
                connection.execute(insert(table), [row | {"published": now} for row in new])
                history = [row | {"recorded": now} for row in new]
                self._store.insert_new(connection, schema.prices, history)


def _check(
    connection: Connection,
    stored: Sequence[PriceConfig],
    wanted: Sequence[PriceConfig],
    now: int,
    *,
    agreed: int | None = None,
) -> None:
    """Raise `ConfigurationError` if publishing `wanted` at `agreed` would change past costs."""
    if not stored:  # this is the first document that is published
        return
    _check_in_effect(stored, wanted, now)
    past = now if agreed is None else min(agreed, now)
    late = [entry for entry in {*wanted} ^ {*stored} if starts_at(entry) <= past]
    if not late:
        return
    # No event is from before 1970, and the column cannot hold all earlier times.
    since = max(0, min(map(starts_at, late)))
    model = _affected(connection, stored, wanted, since=since, until=now + 1)
    if model is not None:
        first = min(late, key=starts_at)
        raise ConfigurationError(
            f"the price of `{first.model}` from {first.since} on would change the cost of past"
            f" usage of `{model}`: give the price a date in the future",
            field="prices",
        )


def _check_in_effect(
    stored: Iterable[PriceConfig], wanted: Iterable[PriceConfig], now: int
) -> None:
    """Raise `ConfigurationError` if `wanted` changes or removes a price that has taken effect."""
    by_date = {(entry.model, entry.since): entry for entry in wanted}
    for old in stored:
        new = by_date.get((old.model, old.since))
        # A configuration document without prices has the price 0, which can be replaced.
        if old in (new, _FREE) or starts_at(old) > now:
            continue
        change = "removed" if new is None else f"changed ({_difference(old, new)})"
        raise ConfigurationError(
            f"the price of `{old.model}` from {old.since} on is in effect and cannot be {change}:"
            " leave it, and add a price with a date in the future",
            field="prices",
        )


def _affected(
    connection: Connection,
    stored: Sequence[PriceConfig],
    wanted: Sequence[PriceConfig],
    *,
    since: int,
    until: int,
) -> str | None:
    """Return a model whose past usage would cost more or less with the prices `wanted`."""
    old, new = PriceList(stored), PriceList(wanted)
    edges = {
        edge for prices in (old, new) for period in prices.periods(since, until) for edge in period
    }
    named = {entry.model for entry in (*stored, *wanted)} | {_UNNAMED}
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
    old_price, new_price = (prices.at(model, time).entry for prices in (old, new))
    return any(getattr(old_price, name) != getattr(new_price, name) for name in _FIELDS[2:])


def _difference(old: PriceConfig, new: PriceConfig) -> str:
    changed = [name for name in _FIELDS if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"`{n}` from {getattr(old, n)} to {getattr(new, n)}" for n in changed)


def _stored(connection: Connection) -> list[PriceConfig]:
    table = schema.published_prices
    query = select(table).order_by(table.c.since, table.c.model)
    return [_entry(row) for row in connection.execute(query)]


def _entry(row: Row[Any]) -> PriceConfig:
    return PriceConfig(**{name: getattr(row, name) for name in _FIELDS})
