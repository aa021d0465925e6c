"""The bounded queue between the loop and the threads that run batches."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from backends.batching.policy import BatchLimits, choose_batch
from backends.batching.row import Row
from backends.types import OutputKind


class Taken(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a thread takes: rows to run together, and rows whose time or askers are gone."""

    rows: list[Row]
    dropped: list[Row]


class RowQueue:
    """Rows in order of arrival and by length. Bounded by the caller, who asks for its size.

    Rows whose askers have gone are met and dropped on the way, not looked for when they go.
    """

    def __init__(self, *, limits: BatchLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._order: deque[Row] = deque()
        self._by_length: dict[OutputKind, dict[int, deque[Row]]] = {k: {} for k in OutputKind}
        self._closed = False
        self.rows = 0
        self.tokens = 0
        self.skipped = 0
        self.expired = 0

    def put(self, rows: Sequence[Row]) -> None:
        """Add rows and wake threads that wait."""
        with self._changed:
            for row in rows:
                self._order.append(row)
                lengths = self._by_length[row.kind]
                if row.length not in lengths:
                    lengths[row.length] = deque()
                lengths[row.length].append(row)
                self.rows += 1
                self.tokens += row.length
            self._changed.notify(len(rows))

    def take(self) -> Taken | None:
        """Wait for rows and take a batch; `None` when the queue is closed."""
        with self._changed:
            while not self._closed:
                if self.rows == 0:
                    self._changed.wait()
                    continue
                taken = self._take()
                if taken.rows or taken.dropped:
                    return taken
            return None

    def close(self) -> list[Row]:
        """Let waiting threads go and return the rows that nobody will run."""
        with self._changed:
            self._closed = True
            left = [row for row in self._order if not row.taken]
            self._order.clear()
            self._by_length = {k: {} for k in OutputKind}
            self.rows = self.tokens = 0
            self._changed.notify_all()
            return left

    def _take(self) -> Taken:
        dropped: list[Row] = []
        now = self._clock()
        anchor = self._oldest(now, dropped)
        if anchor is None:
            return Taken(rows=[], dropped=dropped)
        lengths = self._by_length[anchor.kind]
        waiting = {length: len(rows) for length, rows in lengths.items()}
        rows = []
        for length, count in choose_batch(anchor.length, waiting, self._limits):
            rows += self._pop(lengths, length, count, now, dropped)
        return Taken(rows=rows, dropped=dropped)

    def _oldest(self, now: float, dropped: list[Row]) -> Row | None:
        while self._order:
            row = self._order[0]
            if not row.taken:
                # Rows leave their length's queue in order too, so this one is at its head.
                if self._alive(row, now, dropped):
                    return row
                lengths = self._by_length[row.kind]
                lengths[row.length].popleft()
                self._forget(lengths, row)
            self._order.popleft()
        return None

    def _pop(
        self,
        lengths: dict[int, deque[Row]],
        length: int,
        count: int,
        now: float,
        dropped: list[Row],
    ) -> list[Row]:
        rows: list[Row] = []
        queue = lengths[length]
        while queue and len(rows) < count:
            row = queue.popleft()
            if self._alive(row, now, dropped):
                rows.append(row)
            self._forget(lengths, row)
        return rows

    def _alive(self, row: Row, now: float, dropped: list[Row]) -> bool:
        if not row.wanted:
            self.skipped += 1
            dropped.append(row)
            return False
        if row.deadline <= now:
            self.expired += 1
            row.expired = True
            dropped.append(row)
            return False
        return True

    def _forget(self, lengths: dict[int, deque[Row]], row: Row) -> None:
        row.taken = True
        self.rows -= 1
        self.tokens -= row.length
        if not lengths[row.length]:
            del lengths[row.length]
