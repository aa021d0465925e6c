"""Adds up old usage events to one row for each hour and kind of usage, a few at a time.

A row of sums stands in `usage_events` like a run of requests does, so that whoever sums usage, a
program of an older schema too, reads the same before and after. What is gone are the ids of the
requests and the time within the hour. That an event which comes again is not counted again is then
said by the marks of the logs alone, see `Recording`.
"""

import hashlib
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from gateway.ledger import schema
from gateway.ledger.store import Store

HOUR: Final = 3_600 * 1_000_000_000
_SUBJECT: Final = "usage"
_TURNS: Final = "usage.rollup"
_PREFIX: Final = "rollup-"
_HOURS: Final = 100
"""Hours that one transaction looks at: an event that comes late has years of them looked at."""
_ALIKE: Final = ("tenant", "key", "model", "task", "status", "region", "revision", "code")
_SUMMED: Final = (
    *("items", "hit", "collapsed", "computed", "failed", "rows", "tokens"),
    "requests",
)
_events: Final = schema.usage_events
_until: Final = schema.usage_rollups


class Rollup:
    """Adds up events of whole hours; several processes may do so on one ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_up(self, *, before: int, limit: int) -> int:
        """Add up at most `limit` events of hours that end at or before `before` (nanoseconds).

        Returns:
            How many rows that were; 0 is that none was found, in some of the hours at least.
        """
        end = before - before % HOUR
        with self._store.writing(in_bulk=True) as connection:
            self._store.take_turns(connection, _TURNS)
            start = self._start(connection)
            rows: list[RowMapping] = []
            for _ in range(_HOURS):
                if start is None or start + HOUR > end:
                    break
                rows = _rows_of_hour(connection, start, limit)
                if rows:
                    break
                start = _hour_with_events(connection, start + HOUR)
            self._remember(connection, end if start is None else min(start, end))
            if not rows or start is None:
                return 0
            self._store.add_to(connection, _events, _sums(rows, start), _SUMMED)
            ids = [row["id"] for row in rows]
            connection.execute(delete(_events).where(_events.c.id.in_(ids)))
            return len(rows)

    def _start(self, connection: Connection) -> int | None:
        """Return the first hour that may hold events that are not added up."""
        query = select(_until.c.until).where(_until.c.subject == _SUBJECT)
        # Locked, as a late event that sets it back meanwhile must not be forgotten.
        query = query.with_for_update()
        known = connection.scalar(query)
        return _hour_with_events(connection, 0 if known is None else int(known))

    def _remember(self, connection: Connection, until: int) -> None:
        row = {"subject": _SUBJECT, "until": until}
        if not self._store.insert_new(connection, _until, [row]):
            same = _until.c.subject == _SUBJECT
            connection.execute(update(_until).where(same).values(until=until))


def reopen(connection: Connection, oldest: int) -> None:
    """Have the hours from `oldest` on looked at again, as an event of that time has come late."""
    hour = oldest - oldest % HOUR
    late = (_until.c.subject == _SUBJECT) & (_until.c.until > hour)
    connection.execute(update(_until).where(late).values(until=hour))


def _hour_with_events(connection: Connection, since: int) -> int | None:
    first = connection.scalar(select(func.min(_events.c.time)).where(_events.c.time >= since))
    return None if first is None else int(first) - int(first) % HOUR


def _rows_of_hour(connection: Connection, start: int, limit: int) -> list[RowMapping]:
    columns = [_events.c[name] for name in ("id", *_ALIKE, *_SUMMED)]
    query = (
        select(*columns)
        .where(_events.c.time >= start, _events.c.time < start + HOUR)
        .where(~_events.c.id.startswith(_PREFIX, autoescape=True))
        .limit(limit)
    )
    return list(connection.execute(query).mappings())


def _sums(rows: list[RowMapping], start: int) -> list[dict[str, Any]]:
    """Return the rows that stand for `rows`, all of the hour from `start` on."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:
        kind = tuple(row[name] for name in _ALIKE)
        sums = found.get(kind)
        if sums is None:
            digest = hashlib.blake2b(repr(kind).encode(), digest_size=16).hexdigest()
            own = {"id": f"{_PREFIX}{start // 1_000_000_000}-{digest}", "time": start}
            sums = found[kind] = (
                own | dict(zip(_ALIKE, kind, strict=True)) | dict.fromkeys(_SUMMED, 0)
            )
        for name in _SUMMED:
            sums[name] += row[name]
    return list(found.values())
