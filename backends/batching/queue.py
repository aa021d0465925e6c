"""Queues rows between the event loop, which adds them, and worker threads, which take batches."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import msgspec

from sluicegate.backends.batching.bulk_pause import BulkPause
from sluicegate.backends.batching.fair_queue import BULK, FairQueue, FlowKey
from sluicegate.backends.batching.policy import BatchLimits, Choice, Release, choose_batch
from sluicegate.backends.batching.queue_delay import FlightCounts, QueueDelayPolicy, longest_delay
from sluicegate.backends.batching.row import RequestWork, Row
from sluicegate.backends.executors.cost import CostModel

_MAX_SLOWNESS = 2.0
# Idle threads share rows if their batches take at most this fraction of the time of one batch.
_MOST_SHARED_TIME = 0.75
_NONE: deque[Row] = deque()


class DequeuedBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds rows to run together, and dropped rows, which have expired or have no caller.

    `seconds` is the predicted time of the batch. `work` is this time without fixed cost and
    padding. `more` means that other rows wait. `waiting_since` is the time since which the queue
    has not been empty.
    """

    rows: list[Row]
    dropped: list[Row]
    release: Release
    seconds: float
    work: float
    more: bool
    waiting_since: float


class _LengthIndex(msgspec.Struct, eq=False):
    """Indexes waiting rows by length; `counts` excludes rows dequeued through another index."""

    by_length: dict[int, deque[Row]] = {}
    counts: dict[int, int] = {}
    work: float = 0.0

    def add(self, row: Row) -> None:
        """Add a waiting row."""
        length = row.length
        queue = self.by_length.get(length)
        if queue is None:
            self.by_length[length], self.counts[length] = deque((row,)), 1
        else:
            queue.append(row)
            self.counts[length] += 1
        self.work += row.work

    def remove(self, row: Row) -> None:
        """Remove a row that was just dequeued."""
        length, queue = row.length, self.by_length[row.length]
        self.work -= row.work
        self.counts[length] -= 1
        if not self.counts[length]:
            del self.counts[length], self.by_length[length]
        while queue and queue[0].is_dequeued:
            queue.popleft()


_NO_REQUEST = _LengthIndex()


class RowQueue:
    """Queues rows by flow and by length; `SubmissionQueue` limits the queue's size.

    A flow is one tenant in one traffic class. Rows without callers are withdrawn, or dropped when a
    batch is taken. `seconds` is the predicted time of the waiting rows. All queues of a device may
    share `bulk`, which limits bulk batches. With `delay`, a thread waits briefly before it takes a
    batch, because callers whose rows have just ended may send new rows.
    """

    def __init__(
        self,
        *,
        limits: BatchLimits,
        cost: CostModel,
        clock: Callable[[], float],
        bulk: BulkPause | None = None,
        delay: QueueDelayPolicy | None = None,
    ) -> None:
        self._limits = limits
        self._cost = cost
        self._clock = clock
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._delay = delay
        self._rows_arrived = threading.Condition(lock)
        self.awaited = 0
        """The number of rows that a delayed thread waits for; 0 if no thread delays its batch."""
        self._running = 0
        # A row that is due before this time ends the delay.
        self._least_due = 0.0
        self._waiting_since = clock()
        self._flows = FairQueue()
        # The waiting rows by output and traffic class. Only rows that are equal in both can share a
        # batch.
        self._classes: defaultdict[tuple[str, str], _LengthIndex] = defaultdict(_LengthIndex)
        self._requests: defaultdict[tuple[RequestWork, tuple[str, str]], _LengthIndex] = (
            defaultdict(_LengthIndex)
        )
        self.is_closed = False
        self.rows = 0
        self.tokens = 0
        self.seconds = 0.0
        self.skipped = 0
        self.expired = 0
        # The ratio of measured to predicted time of batches. `Admission.learn` updates it.
        self.slowness = 1.0
        self._bulk = bulk or BulkPause()

    @property
    def runnable(self) -> int:
        """The number of rows that could run now. During a pause, this excludes bulk rows."""
        return self.rows - self._flows.bulk_rows if self.is_paused else self.rows

    @property
    def is_paused(self) -> bool:
        """Whether bulk rows wait for the end of a pause."""
        return self._flows.bulk_rows > 0 and self._clock() < self._bulk.until

    @property
    def interactive_seconds(self) -> float:
        """The predicted seconds of the waiting interactive rows."""
        bulk = self._flows
        return max(0.0, self.seconds - bulk.bulk_work) if self.rows > bulk.bulk_rows else 0.0

    def put(self, rows: Sequence[Row]) -> None:
        """Add rows and wake a waiting thread."""
        with self._changed:
            if not self.rows:
                self._waiting_since = self._clock()
            for row in rows:
                row.work = self._cost.alone(row.length)
                self._flows.add(row)
                self._classes[row.batch_class].add(row)
                if row.request is not None:
                    self._requests[row.request, row.batch_class].add(row)
                self.tokens += row.length
                self.seconds += row.work
            self.rows += len(rows)
            if self.awaited:
                if any(row.due < self._least_due for row in rows):
                    self.awaited = 1
                if self.rows >= self.awaited:
                    self._rows_arrived.notify()
                return
            # Wake only one thread. It wakes another thread if its batch does not take all rows.
            self._changed.notify()

    def waiting(self, flow: FlowKey) -> int:
        """Return how many rows of a flow wait, without waiting for the lock."""
        return self._flows.waiting(flow)

    def ahead(self, flow: FlowKey, work: float) -> float:
        """Return for how long waiting rows delay new rows of a flow, in predicted seconds.

        `work` is the predicted seconds of the new rows.
        """
        with self._changed:
            return self._flows.ahead(flow, work)

    def wait(self, ended: int = 0) -> bool:
        """Wait until rows can run; return whether the queue is still open.

        `ended` is the number of rows of the thread's last batch, which has ended.
        """
        with self._changed:
            self.end_running(ended)
            # Count now, because rows that arrive later may come from callers whose rows have just
            # ended.
            load = FlightCounts(waiting=self.rows, running=self._running, ended=ended)
            since = self._clock()
            while not (self.is_closed or (self.runnable and not self.awaited)):
                # A delayed thread takes the rows, and wakes other threads for the rest.
                is_timed = self.rows and not self.awaited
                self._changed.wait(self._bulk.until - self._clock() if is_timed else None)
            if ended and self._delay is not None and not self.is_closed:
                self._delay_batch(self._delay, load, since)
            return not self.is_closed

    def end_running(self, ended: int) -> None:
        """Subtract `ended` rows, which have ended or failed, from the running rows."""
        with self._changed:
            self._running -= ended
            if self.awaited and not self._running:
                self._rows_arrived.notify()

    def _delay_batch(self, delay: QueueDelayPolicy, load: FlightCounts, since: float) -> None:
        """Wait until enough rows are in the queue, or until waiting is no longer worthwhile.

        The last batch ended at `since`.
        """
        if not self._running:
            return
        wanted = delay.rows(load, most=self._limits.rows)
        lead = self._flows.lead(with_bulk=False)
        if wanted <= self.rows or lead is None:
            return
        now = self._clock()
        seconds = (self._cost.base + self.seconds / self.rows * wanted) * self.slowness
        left = since + longest_delay(seconds) - now
        if left <= 0.0 or lead.due - now < seconds + left:
            return
        self.awaited, self._least_due = wanted, now + seconds + left
        self._rows_arrived.wait_for(self._has_enough_rows, left)
        self.awaited = 0
        if self._running:
            delay.learn(came_back=self.rows >= wanted)

    def _has_enough_rows(self) -> bool:
        return self.is_closed or self.rows >= self.awaited or not self._running

    def take(self, *, idle: int = 0) -> DequeuedBatch | None:
        """Take the next batch; return `None` if no rows are left or the queue is closed.

        `FairQueue` chooses the first row of the batch. `choose_batch` chooses the other rows. If
        `idle` other threads could run rows at the same time, the batch leaves them their share.
        """
        with self._changed:
            if self.is_closed:
                return None
            dropped: list[Row] = []
            now = self._clock()
            with_bulk = now >= self._bulk.until
            lead = self._flows.lead(with_bulk=with_bulk)
            while lead is not None and not self._keep_or_drop(lead, now, dropped):
                lead = self._flows.lead(with_bulk=with_bulk)
            if lead is None:
                return self._make_batch([], dropped, Release.IDLE, 0.0) if dropped else None
            if self._limits.by_arrival:
                return self._take_oldest(lead, now, dropped)
            choice = self._choose(lead, now, self._limits)
            if idle and lead.lane != BULK:
                choice = self._shared(choice, lead, now, threads=idle + 1)
            self._bulk.began(lead.lane, choice.seconds * self.slowness, now)
            rows = self._take_rows(lead, choice, now, dropped)
            return self._make_batch(rows, dropped, choice.release, choice.seconds)

    def withdraw(self, rows: Sequence[Row]) -> list[Row]:
        """Remove and return the waiting rows among `rows` that have no caller any more.

        The same row can be in `rows` twice.
        """
        removed: list[Row] = []
        with self._changed:
            for row in () if self.is_closed else rows:
                if not row.is_dequeued and not row.is_awaited:
                    self.skipped += 1
                    self._remove(row, 0.0)
                    removed.append(row)
        return removed

    def close(self) -> list[Row]:
        """Close the queue, wake all threads and return the waiting rows."""
        with self._changed:
            self.is_closed = True
            rows = list(self._flows.rows())
            self._flows.clear()
            self._classes.clear()
            self._requests.clear()
            self.rows = self.tokens = 0
            self.seconds = 0.0
            self._changed.notify_all()
            self._rows_arrived.notify_all()
            return rows

    def partition_runnable(self, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Split rows of a failed batch into rows to run again and rows that have expired."""
        dropped: list[Row] = []
        with self._changed:
            now = self._clock()
            kept = [row for row in rows if self._check_or_drop(row, now, dropped)]
        return kept, dropped

    def limit_tokens(self, tokens: int) -> None:
        """Limit batches to this many tokens, because a larger batch ran out of memory."""
        with self._changed:
            if tokens < self._limits.tokens:
                self._limits = msgspec.structs.replace(self._limits, tokens=max(1, tokens))

    def _shared(self, choice: Choice, lead: Row, now: float, *, threads: int) -> Choice:
        """Return a smaller batch than `choice` if the rows end much sooner in several batches."""
        rows = -(-(self.rows - self._flows.bulk_rows) // threads)
        if rows >= sum([count for _, count in choice.lengths]):
            return choice
        limits = msgspec.structs.replace(self._limits, rows=rows)
        smaller = self._choose(lead, now, limits)
        if smaller.seconds > _MOST_SHARED_TIME * choice.seconds:
            return choice
        return msgspec.structs.replace(smaller, release=Release.SHARED)

    def _choose(self, lead: Row, now: float, limits: BatchLimits) -> Choice:
        time_left = (lead.due if lead.due > now else lead.deadline) - now
        if lead.lane == BULK:
            time_left = min(time_left, self._bulk.limit(now))
        own = self._of_request(lead)
        reserved = lead.request.reserved if lead.request is not None else 0.0
        return choose_batch(
            lead.length,
            self._classes[lead.batch_class].counts,
            limits,
            self._cost,
            time_left=time_left / self.slowness,
            own=own.counts,
            own_work=own.work + reserved,
        )

    def _of_request(self, row: Row) -> _LengthIndex:
        """Return the waiting rows of a row's request."""
        if row.request is None:
            return _NO_REQUEST
        return self._requests.get((row.request, row.batch_class), _NO_REQUEST)

    def _take_oldest(self, lead: Row, now: float, dropped: list[Row]) -> DequeuedBatch:
        """Take rows in order until the batch is full or a row of another class is next."""
        rows: list[Row] = []
        following: Row | None = lead
        limit = self._limits.rows
        while following and following.batch_class == lead.batch_class and len(rows) < limit:
            if self._keep_or_drop(following, now, dropped):
                self._remove(following, following.work)
                rows.append(following)
            following = self._flows.lead()
        lengths = [row.length for row in rows]
        seconds = self._cost.seconds(
            rows=len(rows), longest=max(lengths, default=0), tokens=sum(lengths)
        )
        full = len(rows) == limit
        return self._make_batch(rows, dropped, Release.FULL if full else Release.IDLE, seconds)

    def _take_rows(self, lead: Row, choice: Choice, now: float, dropped: list[Row]) -> list[Row]:
        share = choice.seconds / sum([rows for _, rows in choice.lengths])
        indexes = self._of_request(lead), self._classes[lead.batch_class]
        rows = [lead]
        self._remove(lead, share)
        for length, wanted in choice.lengths:
            missing = wanted - (length == lead.length)
            for index in indexes:
                queue = index.by_length.get(length, _NONE)
                while missing and queue:
                    row = queue.popleft()
                    if row.is_dequeued or not self._keep_or_drop(row, now, dropped):
                        continue
                    self._remove(row, share)
                    rows.append(row)
                    missing -= 1
        return rows

    def _make_batch(
        self, rows: list[Row], dropped: list[Row], release: Release, seconds: float
    ) -> DequeuedBatch:
        more = self.runnable > 0
        self._running += len(rows)
        if self.rows:
            self._changed.notify()
        return DequeuedBatch(
            rows=rows,
            dropped=dropped,
            release=release,
            seconds=seconds,
            work=sum([row.work for row in rows]),
            more=more,
            waiting_since=self._waiting_since,
        )

    def _keep_or_drop(self, row: Row, now: float, dropped: list[Row]) -> bool:
        if self._check_or_drop(row, now, dropped):
            return True
        self._remove(row, 0.0)
        return False

    def _check_or_drop(self, row: Row, now: float, dropped: list[Row]) -> bool:
        if not row.is_awaited:
            self.skipped += 1
        elif row.deadline > now + (self._cost.base + row.work) * _MAX_SLOWNESS:
            return True  # the common case, without the exact calculation
        elif row.deadline <= (least := now + self._minimum_time(row)):
            row.is_expired = True
            if row.deadline > least:
                # A caller with a later deadline has just joined, and may have seen the row as live.
                row.is_expired = False
                return True
            self.expired += 1
        else:
            return True
        dropped.append(row)
        return False

    def _minimum_time(self, row: Row) -> float:
        """Return the minimum seconds that a row needs. With less time left, a row has expired."""
        # Bounded, so that a device that was slow gets rows to show that it is fast again.
        return (self._cost.base + row.work) * min(self.slowness, _MAX_SLOWNESS)

    def _remove(self, row: Row, seconds: float) -> None:
        row.is_dequeued = True
        self._flows.remove(row, seconds)
        if row.request is not None:
            name = (row.request, row.batch_class)
            request = self._requests[name]
            request.remove(row)
            if not request.counts:
                del self._requests[name]
        self._classes[row.batch_class].remove(row)
        self.rows -= 1
        self.tokens -= row.length
        self.seconds = self.seconds - row.work if self.rows else 0.0
