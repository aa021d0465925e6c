"""Takes events in: each counted once, and the high-water mark moved in the same transaction."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, exc, func, select, update

from gateway.errors import InvalidRequest
from gateway.ledger import schema
from gateway.ledger.store import Store
from gateway.ledger.types import Batch, LedgerStatistics, Recorded
from gateway.types import RequestEvent

_LARGEST: Final = 2**63 - 1
_encode = msgspec.msgpack.Encoder().encode


class UnrecordableBatch(Exception):
    """A batch that the database refuses for what is in it, now and for ever."""


class Recording:
    """Writes batches and knows what is committed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, batches: Sequence[Batch]) -> Recorded:
        """Take `batches` in; what was taken before is not counted again.

        Raises:
            DependencyUnavailable: nothing was written; try again.
            UnrecordableBatch: nothing was written, and never will be.
        """
        try:
            with self._store.writing(in_bulk=True) as connection:
                return self._record(connection, batches)
        except (InvalidRequest, exc.IntegrityError) as error:
            raise UnrecordableBatch(f"the database refuses it: {type(error).__name__}") from error

    def high_water(self, log_ids: Iterable[str]) -> dict[str, int]:
        """Return, per log, up to which sequence number everything is committed."""
        wanted = list(log_ids)
        table = schema.high_water
        with self._store.reading() as connection:
            rows = connection.execute(select(table).where(table.c.log_id.in_(wanted)))
            marks = {row.log_id: row.sequence for row in rows}
        return {log_id: marks.get(log_id, 0) for log_id in wanted}

    def bury(self, log_id: str, reason: str, payload: bytes) -> None:
        """Keep what is no batch at all where an operator finds it."""
        with self._store.writing() as connection:
            self._bury(connection, log_id, reason, [payload])

    def statistics(self) -> LedgerStatistics:
        """Return sums over the whole ledger."""
        gaps, ranges = schema.gaps.c, schema.ranges.c
        queries = (
            select(func.sum(schema.usage_events.c.requests)),
            select(func.count()).select_from(schema.dead_letters),
            select(func.sum(gaps.last - gaps.first + 1)),
            select(func.sum(ranges.last - ranges.first + 1)),
        )
        with self._store.reading() as connection:
            events, dead, lost, waiting = (int(connection.scalar(q) or 0) for q in queries)
        return LedgerStatistics(events=events, dead_letters=dead, lost=lost, waiting=waiting)

    def _record(self, connection: Connection, batches: Sequence[Batch]) -> Recorded:
        counted = duplicates = dead = lost = 0
        for batch in batches:
            fit = [e for e in batch.events if _fits(e)]
            unfit = [_encode(e) for e in batch.events if not _fits(e)]
            new = self._insert(connection, fit)
            counted += new
            duplicates += sum(e.count for e in fit) - new
            dead += self._bury(connection, batch.log_id, "not an event", batch.wrong)
            dead += self._bury(connection, batch.log_id, "numbers out of range", unfit)
            if batch.lost:
                lost += self._miss(connection, batch)
            self._advance(connection, batch)
        return Recorded(counted=counted, duplicates=duplicates, dead=dead, lost=lost)

    def _insert(self, connection: Connection, events: Sequence[RequestEvent]) -> int:
        """Add the events that are new; return how many requests those are."""
        table, rows = schema.usage_events, [_row(e) for e in events]
        attempt = connection.begin_nested()
        new = self._store.insert_new(connection, table, rows)
        if new in (0, len(rows)):
            attempt.commit()
            return sum(e.count for e in events) if new else 0
        # Rarely some are known and some are not; each must say which, as it may be many.
        attempt.rollback()
        added = (self._store.insert_new(connection, table, [row]) for row in rows)
        return sum(e.count * n for e, n in zip(events, added, strict=True))

    def _advance(self, connection: Connection, batch: Batch) -> None:
        """Move the mark over `batch`, if nothing before it is missing; else remember it."""
        marks, ranges = schema.high_water, schema.ranges
        start = {"log_id": batch.log_id, "sequence": 0}
        self._store.insert_new(connection, marks, [start])
        of_log = marks.c.log_id == batch.log_id
        # The lock makes workers that record blocks of one log take turns.
        before = connection.execute(select(marks.c.sequence).where(of_log).with_for_update())
        mark = before.scalar_one()
        if batch.last <= mark:
            return
        row = {"log_id": batch.log_id, "first": batch.first, "last": batch.last}
        if batch.first > mark + 1:
            self._remember(connection, row)
            return
        mark = batch.last
        waiting = select(ranges).where(ranges.c.log_id == batch.log_id).order_by(ranges.c.first)
        for found in connection.execute(waiting).all():
            if found.first > mark + 1:
                break
            mark = max(mark, found.last)
            taken = (ranges.c.log_id == batch.log_id) & (ranges.c.first == found.first)
            connection.execute(delete(ranges).where(taken))
        connection.execute(update(marks).where(of_log).values(sequence=mark))

    def _remember(self, connection: Connection, row: dict[str, Any]) -> None:
        ranges = schema.ranges
        if self._store.insert_new(connection, ranges, [row]):
            return
        same = (ranges.c.log_id == row["log_id"]) & (ranges.c.first == row["first"])
        longer = update(ranges).where(same & (ranges.c.last < row["last"]))
        connection.execute(longer.values(last=row["last"]))

    def _miss(self, connection: Connection, batch: Batch) -> int:
        row = {"log_id": batch.log_id, "first": batch.first, "last": batch.last}
        row["time"] = self._store.clock()
        new = self._store.insert_new(connection, schema.gaps, [row])
        return (batch.last - batch.first + 1) if new else 0

    def _bury(
        self, connection: Connection, log_id: str, reason: str, payloads: Sequence[bytes]
    ) -> int:
        now = self._store.clock()
        rows = [
            {
                "digest": hashlib.blake2b(log_id.encode() + payload, digest_size=16).hexdigest(),
                "time": now,
                "log_id": log_id,
                "reason": reason,
                "payload": payload,
            }
            for payload in payloads
        ]
        return self._store.insert_new(connection, schema.dead_letters, rows)


def _fits(event: RequestEvent) -> bool:
    """Whether the columns can hold what `event` says."""
    used = event.usage
    each = [used.items, used.hit, used.collapsed, used.computed]
    each += [used.failed, used.rows, used.tokens]
    numbers = [event.time, event.status, event.count - 1, min(each), max(each) * event.count]
    short = len(event.id) <= 128 and len(event.tenant) <= 64 and len(event.key) <= 64  # noqa: PLR2004
    return short and min(numbers) >= 0 and max(numbers) <= _LARGEST


def _row(event: RequestEvent) -> dict[str, object]:
    used, count = event.usage, event.count
    return {
        "id": event.id,
        "time": event.time,
        "tenant": event.tenant,
        "key": event.key,
        "model": event.model,
        "task": event.task,
        "status": event.status,
        "items": used.items * count,
        "hit": used.hit * count,
        "collapsed": used.collapsed * count,
        "computed": used.computed * count,
        "failed": used.failed * count,
        "rows": used.rows * count,
        "tokens": used.tokens * count,
        "region": event.region,
        "revision": event.revision,
        "code": event.code,
        "requests": count,
    }
