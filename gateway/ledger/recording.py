"""Takes events in: each counted once, and the high-water mark moved in the same transaction."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, exc, func, select, update

from gateway.errors import InvalidRequest
from gateway.ledger import schema
from gateway.ledger.rollup import reopen
from gateway.ledger.store import Store
from gateway.ledger.types import Batch, LedgerStatistics, Recorded
from gateway.types import RequestEvent

_LARGEST: Final = 2**63 - 1
_MOST: Final = 2**40
"""What an event may count of anything: the sums of millions of such are numbers of SQL still."""
_LOGS_AT_ONCE: Final = 1000
_encode = msgspec.msgpack.Encoder().encode


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What of a log is in the ledger: all up to the mark, and `ranges` beyond it, in order.

    That is asked before an event's id, which is gone once events are added up, see `rollup`.
    """

    mark: int
    ranges: Sequence[tuple[int, int]]

    def holds(self, number: int | None) -> bool:
        """Tell whether the record `number` is in the ledger; of `None` nobody knows."""
        if number is None:
            return False
        return number <= self.mark or any(first <= number <= last for first, last in self.ranges)


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
        marks: dict[str, int] = {}
        with self._store.reading() as connection:
            # Databases bound how many values a statement has.
            for start in range(0, len(wanted), _LOGS_AT_ONCE):
                some = table.c.log_id.in_(wanted[start : start + _LOGS_AT_ONCE])
                rows = connection.execute(select(table).where(some))
                marks |= {row.log_id: row.sequence for row in rows}
        return {log_id: marks.get(log_id, 0) for log_id in wanted}

    def bury(self, log_id: str, reason: str, payload: bytes) -> None:
        """Keep what is no batch at all where an operator finds it."""
        with self._store.writing(in_bulk=True) as connection:
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
        # In one order, so that workers that record blocks of the same logs cannot wait in a circle.
        for batch in sorted(batches, key=lambda each: each.log_id):
            known = self._known(connection, batch.log_id)
            events = [e for number, e in batch.numbered() if not known.holds(number)]
            fit = [e for e in events if _fits(e)]
            unfit = [_encode(e) for e in events if not _fits(e)]
            new = self._insert(connection, fit)
            counted += new
            duplicates += sum(e.count for e in batch.events) - sum(e.count for e in events)
            duplicates += sum(e.count for e in fit) - new
            dead += self._bury(connection, batch.log_id, "not an event", batch.wrong)
            dead += self._bury(connection, batch.log_id, "numbers out of range", unfit)
            if batch.lost and batch.last > known.mark:
                lost += self._miss(connection, batch)
            self._advance(connection, batch, known)
        return Recorded(counted=counted, duplicates=duplicates, dead=dead, lost=lost)

    def _insert(self, connection: Connection, events: Sequence[RequestEvent]) -> int:
        """Add the events that are new; return how many requests those are."""
        table, rows = schema.usage_events, [_row(e) for e in events]
        if events:
            reopen(connection, min(e.time for e in events))
        attempt = connection.begin_nested()
        new = self._store.insert_new(connection, table, rows)
        if new in (0, len(rows)):
            attempt.commit()
            return sum(e.count for e in events) if new else 0
        # Rarely some are known and some are not; each must say which, as it may be many.
        attempt.rollback()
        added = (self._store.insert_new(connection, table, [row]) for row in rows)
        return sum(e.count * n for e, n in zip(events, added, strict=True))

    def _known(self, connection: Connection, log_id: str) -> "_Known":
        """Return what of a log is in the ledger; workers that record the same log take turns."""
        marks, ranges = schema.high_water, schema.ranges
        self._store.insert_new(connection, marks, [{"log_id": log_id, "sequence": 0}])
        of_log = select(marks.c.sequence).where(marks.c.log_id == log_id).with_for_update()
        mark = connection.execute(of_log).scalar_one()
        waiting = select(ranges).where(ranges.c.log_id == log_id).order_by(ranges.c.first)
        found = [(row.first, row.last) for row in connection.execute(waiting)]
        return _Known(mark=mark, ranges=found)

    def _advance(self, connection: Connection, batch: Batch, known: "_Known") -> None:
        """Move the mark over `batch`, if nothing before it is missing; else remember it."""
        marks, ranges = schema.high_water, schema.ranges
        if batch.last <= known.mark:
            return
        row = {"log_id": batch.log_id, "first": batch.first, "last": batch.last}
        if batch.first > known.mark + 1:
            self._remember(connection, row)
            return
        mark = batch.last
        for first, last in known.ranges:
            if first > mark + 1:
                break
            mark = max(mark, last)
            taken = (ranges.c.log_id == batch.log_id) & (ranges.c.first == first)
            connection.execute(delete(ranges).where(taken))
        of_log = marks.c.log_id == batch.log_id
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
    numbers = [event.time, event.status, event.count - 1, min(each)]
    short = len(event.id) <= 128 and len(event.tenant) <= 64 and len(event.key) <= 64  # noqa: PLR2004
    fits = min(numbers) >= 0 and max(numbers) <= _LARGEST
    return short and fits and max(each) * event.count <= _MOST


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
