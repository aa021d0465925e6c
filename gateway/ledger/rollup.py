"""Replaces past hours' usage events by sums: one row for each hour and kind of usage.

A row of sums in `usage_events` has the same form as a row that holds several similar requests. All
queries, including queries of older programs, therefore return the same usage as before. The
replacement discards the requests' ids and their times within the hour. From then on, only the
stored sequence numbers of event logs show that an event was recorded (see `EventRecorder`).
"""

import hashlib
import logging
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, delete, func, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.migrations import has_later_schema
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.usage_fields import KIND, SUMMED
from sluicegate.gateway.ledger.usage_marks import HOUR, LOCK, locked_marks, move_rolled_up
from sluicegate.gateway.ledger.usage_totals import ROLLUP_PREFIX, catch_up

_HOURS: Final = 100
"""The most hours that one transaction scans. After a very late event, the roll-up has to scan all
hours since the event again."""
# Rows that the totals include, and rows that they do not include, need sums with different ids.
_KIND: Final = (*KIND, "is_summed")
_log = logging.getLogger(__name__)
_events: Final = schema.usage_events


class Rollup:
    """Replaces the events of past hours by sums. Several processes can do so at the same time.

    In a ledger with a later schema it does nothing, because sums and totals would lack the numbers
    that only newer programs know.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_warned = False

    def add_up(self, *, before: int, limit: int) -> int:
        """Replace at most `limit` rows, all of one hour, by their sums.

        The hour ended at or before `before`, a Unix time in nanoseconds.

        Returns:
            The number of rows that were replaced. It is 0 if the scanned hours had no rows to
            replace, or if the ledger has a later schema.
        """
        end = before - before % HOUR
        with self._store.writing(in_bulk=True) as connection:
            self._store.lock_subject(connection, LOCK)
            if has_later_schema(connection):
                if not self._has_warned:
                    self._has_warned = True
                    _log.warning("usage is not summed: a later program has migrated the ledger")
                return 0
            start = _hour_with_events(connection, locked_marks(connection).rolled_up)
            rows: list[RowMapping] = []
            for _ in range(_HOURS):
                if start is None or start + HOUR > end:
                    break
                rows = _rows_of_hour(connection, start, limit)
                if rows:
                    break
                start = _hour_with_events(connection, start + HOUR)
            move_rolled_up(connection, end if start is None else min(start, end))
            if not rows or start is None:
                return 0
            self._store.add_to(connection, _events, _sums(rows, start), SUMMED)
            ids = [row["id"] for row in rows]
            connection.execute(delete(_events).where(_events.c.id.in_(ids)))
            return len(rows)

    def catch_up(self, *, limit: int) -> bool:
        """Bring the totals up to date in steps of `limit` rows; see `usage_totals.catch_up`."""
        return catch_up(self._store, limit=limit)


def _hour_with_events(connection: Connection, since: int) -> int | None:
    first = connection.scalar(select(func.min(_events.c.time)).where(_events.c.time >= since))
    return None if first is None else int(first) - int(first) % HOUR


def _rows_of_hour(connection: Connection, start: int, limit: int) -> list[RowMapping]:
    columns = [_events.c[name] for name in ("id", *_KIND, *SUMMED)]
    query = (
        select(*columns)
        .where(_events.c.time >= start, _events.c.time < start + HOUR)
        .where(~_events.c.id.startswith(ROLLUP_PREFIX, autoescape=True))
        .limit(limit)
    )
    return list(connection.execute(query).mappings())


def _sums(rows: list[RowMapping], start: int) -> list[dict[str, Any]]:
    """Return rows that hold the sums of `rows`. The hour of all `rows` begins at `start`."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:
        kind = tuple(row[name] for name in _KIND)
        sums = found.get(kind)
        if sums is None:
            digest = hashlib.blake2b(repr(kind).encode(), digest_size=16).hexdigest()
            own = {"id": f"{ROLLUP_PREFIX}{start // 1_000_000_000}-{digest}", "time": start}
            own |= zip(_KIND, kind, strict=True)
            sums = found[kind] = own | dict.fromkeys(SUMMED, 0)
        for name in SUMMED:
            sums[name] += row[name]
    return list(found.values())
