"""Records each usage event exactly once.

Each transaction stores events together with the high-water marks of their event logs. The
high-water mark of a log is a sequence number. All records of the log up to this number are stored.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, delete, exc, func, select, update

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.event_rows import is_valid, row_of, rows_of_runs
from sluicegate.gateway.ledger.revision_usage import add_revision_usage
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.types import EventBlock, Recorded
from sluicegate.gateway.ledger.usage_marks import hold_marks
from sluicegate.gateway.ledger.usage_totals import add_to_totals
from sluicegate.gateway.types import RequestEvent

_LOGS_AT_ONCE: Final = 1000
_encode = msgspec.msgpack.Encoder().encode
# These statements are built only once, because building one takes as long as executing it.
_marks: Final = schema.high_water
_of_log: Final = _marks.c.log_id == bindparam("of_log")
_locked_mark: Final = select(_marks.c.sequence).where(_of_log).with_for_update()
_moved_mark: Final = update(_marks).where(_of_log).values(sequence=bindparam("mark"))
_ranges_of_log: Final = (
    select(schema.ranges)
    .where(schema.ranges.c.log_id == bindparam("of_log"))
    .order_by(schema.ranges.c.first)
)


class _RecordedRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the sequence numbers of those records of an event log that the ledger has stored.

    These are all numbers up to `mark`, and the numbers in `ranges`, which lie beyond `mark`.

    The ids of events cannot show which events are recorded, because the roll-up deletes ids (see
    `rollup`).
    """

    mark: int
    ranges: Sequence[tuple[int, int]]

    def holds(self, number: int) -> bool:
        """Return whether the ledger has the record with this sequence number."""
        return number <= self.mark or any(first <= number <= last for first, last in self.ranges)


class UnrecordableBlock(Exception):
    """The database refuses a block of events because of its content. A retry would fail, too."""


class EventRecorder:
    """Writes blocks of usage events, and reads the high-water marks of event logs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, blocks: Sequence[EventBlock]) -> Recorded:
        """Record blocks of events in one transaction. Events that are already recorded are skipped.

        Raises:
            DependencyUnavailable: nothing was written; the caller should retry.
            UnrecordableBlock: nothing was written, and the caller should not retry.
        """
        try:
            with self._store.writing(in_bulk=True) as connection:
                return self._record(connection, blocks)
        except (InvalidRequest, exc.IntegrityError) as error:
            raise UnrecordableBlock(f"the database refuses it: {type(error).__name__}") from error

    def high_water(self, log_ids: Iterable[str]) -> dict[str, int]:
        """Return the high-water mark of each log.

        The ledger has committed all records of the log up to this sequence number.
        """
        ids = list(log_ids)
        table = schema.high_water
        marks: dict[str, int] = {}
        with self._store.reading() as connection:
            # Several queries, because databases limit the number of values in a statement.
            for start in range(0, len(ids), _LOGS_AT_ONCE):
                named = table.c.log_id.in_(ids[start : start + _LOGS_AT_ONCE])
                rows = connection.execute(select(table).where(named))
                marks |= {row.log_id: row.sequence for row in rows}
        return {log_id: marks.get(log_id, 0) for log_id in ids}

    def add_dead_letter(self, log_id: str, reason: str, payload: bytes) -> None:
        """Store an unreadable record as a dead letter, so that an operator can inspect it."""
        with self._store.writing(in_bulk=True) as connection:
            self._add_dead_letters(connection, log_id, reason, [payload])

    def dead_letters(self) -> int:
        """Return the number of dead letters."""
        with self._store.reading() as connection:
            count = connection.execute(select(func.count()).select_from(schema.dead_letters))
            return int(count.scalar_one())

    def insert(self, connection: Connection, events: Sequence[RequestEvent]) -> int:
        """Insert events that are not recorded yet; return the number of their requests.

        Similar events with consecutive ids become one row, which has only the first event's id.
        Only the sequence numbers of the log's records show that the other events are recorded.
        """
        self._hold_marks(connection, events)
        rows = self._insert(connection, events)
        add_to_totals(self._store, connection, rows)
        return _requests_in(rows)

    def _hold_marks(self, connection: Connection, events: Iterable[RequestEvent]) -> None:
        oldest = min((e.time for e in events), default=None)
        if oldest is not None:
            hold_marks(connection, oldest)

    def _insert(
        self, connection: Connection, events: Sequence[RequestEvent]
    ) -> list[dict[str, Any]]:
        """Insert new events; return their rows, which the caller must pass to `add_to_totals`."""
        if not events:
            return []
        table = schema.usage_events
        rows = rows_of_runs(events)
        attempt = connection.begin_nested()
        if self._store.insert_new(connection, table, rows) == len(rows):
            attempt.commit()
            add_revision_usage(self._store, connection, events)
            return rows
        # In the rare case that some events are already recorded, retry with one row for each event.
        attempt.rollback()
        rows = [row_of(e) for e in events]
        added = [self._store.insert_new(connection, table, [row]) for row in rows]
        add_revision_usage(
            self._store, connection, [e for e, n in zip(events, added, strict=True) if n]
        )
        return [row for row, n in zip(rows, added, strict=True) if n]

    def _record(self, connection: Connection, blocks: Sequence[EventBlock]) -> Recorded:
        counted = duplicates = dead = lost = 0
        # The marks are locked before any log, so that all transactions lock in the same order.
        self._hold_marks(connection, (e for block in blocks for e in block.events))
        inserted: list[dict[str, Any]] = []
        # Sorted, so that concurrent transactions lock the logs in the same order.
        for block in sorted(blocks, key=lambda each: each.log_id):
            recorded = self._recorded(connection, block.log_id)
            events = [e for number, e in block.numbered() if not recorded.holds(number)]
            valid = list(filter(is_valid, events))
            invalid = [] if len(valid) == len(events) else [e for e in events if not is_valid(e)]
            rows = self._insert(connection, valid)
            inserted += rows
            new = _requests_in(rows)
            counted += new
            duplicates += sum(e.count for e in block.events) - sum(e.count for e in events)
            duplicates += sum(e.count for e in valid) - new
            # If the block was recorded before, its dead letters are not stored again, because an
            # operator may have removed them since.
            wrong = [] if _holds_all(recorded, block) else block.wrong
            dead += self._add_dead_letters(connection, block.log_id, "not an event", wrong)
            dead += self._add_dead_letters(
                connection, block.log_id, "numbers out of range", list(map(_encode, invalid))
            )
            if block.lost and block.last > recorded.mark:
                lost += self._add_gap(connection, block)
            self._advance(connection, block, recorded)
        # This comes last, because it locks rows for which other transactions wait until the commit.
        add_to_totals(self._store, connection, inserted)
        return Recorded(counted=counted, duplicates=duplicates, dead=dead, lost=lost)

    def _recorded(self, connection: Connection, log_id: str) -> _RecordedRanges:
        """Lock a log until the commit, and return which of its records the ledger has."""
        name = {"of_log": log_id}
        mark = connection.execute(_locked_mark, name).scalar_one_or_none()
        if mark is None:
            self._store.insert_new(connection, _marks, [{"log_id": log_id, "sequence": 0}])
            mark = connection.execute(_locked_mark, name).scalar_one()
        found = [(row.first, row.last) for row in connection.execute(_ranges_of_log, name)]
        return _RecordedRanges(mark=mark, ranges=found)

    def _advance(
        self, connection: Connection, block: EventBlock, recorded: _RecordedRanges
    ) -> None:
        """Move the log's mark to the end of `block`, or store a range if `block` follows a gap."""
        ranges = schema.ranges
        if block.last <= recorded.mark:
            return
        row = {"log_id": block.log_id, "first": block.first, "last": block.last}
        if block.first > recorded.mark + 1:
            self._add_range(connection, row)
            return
        mark = block.last
        for first, last in recorded.ranges:
            if first > mark + 1:
                break
            mark = max(mark, last)
            same = (ranges.c.log_id == block.log_id) & (ranges.c.first == first)
            connection.execute(delete(ranges).where(same))
        connection.execute(_moved_mark, {"of_log": block.log_id, "mark": mark})

    def _add_range(self, connection: Connection, row: dict[str, Any]) -> None:
        ranges = schema.ranges
        if self._store.insert_new(connection, ranges, [row]):
            return
        same = (ranges.c.log_id == row["log_id"]) & (ranges.c.first == row["first"])
        longer = update(ranges).where(same & (ranges.c.last < row["last"]))
        connection.execute(longer.values(last=row["last"]))

    def _add_gap(self, connection: Connection, block: EventBlock) -> int:
        row = {"log_id": block.log_id, "first": block.first, "last": block.last}
        row["time"] = self._store.clock()
        new = self._store.insert_new(connection, schema.gaps, [row])
        return (block.last - block.first + 1) if new else 0

    def _add_dead_letters(
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


def _holds_all(recorded: _RecordedRanges, block: EventBlock) -> bool:
    return recorded.holds(block.first) and recorded.holds(block.last)


def _requests_in(rows: Sequence[dict[str, Any]]) -> int:
    return sum(row["requests"] for row in rows)
