"""Looks rows up in the row cache, coalesces equal rows in flight, and submits all other rows."""

import asyncio
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sluicegate.backends.batching.admission import QueueReservation
from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.fair_queue import BULK, INTERACTIVE
from sluicegate.backends.batching.row import Row, RowKey, RowWaiter
from sluicegate.backends.batching.vector_cache import VectorCache
from sluicegate.backends.errors import BackendError, ItemRefused
from sluicegate.backends.telemetry.spans import NO_SPAN, Span
from sluicegate.backends.types import Encoding, FloatArray, OutputKind, RowStatistics

# A caller shares a row in flight if the row is due at most this many seconds after the caller's
# deadline.
_WAIT_TOLERANCE = 0.25
# An item remembers the windows of so many texts. A guard makes at most four readings of a text, and
# all heads of an encoder read them.
_MOST_READ = 8


class RowCache(VectorCache[RowKey]):
    """Caches the outputs of rows."""

    def __init__(self, *, max_bytes: int) -> None:
        super().__init__(max_bytes=max_bytes, key_bytes=lambda key: len(key[3]))


class HostedItems(msgspec.Struct):
    """Counts the items of one call that now run in algorithm hosts."""

    count: int = 0


class ReadWindows(NamedTuple):
    """Holds the outputs of a text's windows, and how many `tokens` these windows have."""

    outputs: FloatArray
    tokens: int


class RowCaller(msgspec.Struct, kw_only=True, eq=False):
    """Identifies an item that needs rows, and counts the item's rows.

    - `tokens` counts the tokens of computed rows. `input_tokens` counts the tokens of all rows.
    - `truncate` allows the truncation of texts. `truncated_from` is the length in tokens of the
      longest truncated text.
    - `work` is the predicted seconds of rows that were queued under `reservation`.
    - `wasted` counts rows that were withdrawn, or computed although the item failed or was late.
    - `rows_left` is the remaining row budget of a model owner's algorithm.
    - `hosted` counts the items of the call that run in algorithm hosts. All items of the call
      share this counter.
    - `revision` has two parts: the name of a model, and the number of the revision that answers.
      `shadow` is the number of the revision to which the item is mirrored.
    - `label` is the first label of the result.
    - `is_partial` says that a part of the item failed, although the item has a result.
    - `windows` holds the outputs of the windows that the item has read lately. Other heads of the
      encoder use these outputs, and do not read the windows again.
    """

    scope: str
    deadline: float
    span: Span = NO_SPAN
    lane: str = INTERACTIVE
    reservation: QueueReservation | None = None
    truncate: bool = True
    truncated_from: int = 0
    work: float = 0.0
    wasted: int = 0
    rows: int = 0
    cached: int = 0
    tokens: int = 0
    input_tokens: int = 0
    rows_left: float = math.inf
    hosted: HostedItems = msgspec.field(default_factory=HostedItems)
    revision: tuple[str, str] | None = None
    shadow: str = ""
    label: str = ""
    is_partial: bool = False
    windows: dict[object, ReadWindows] = {}

    def spend(self, rows: int) -> None:
        """Deduct rows from the row budget.

        Raises:
            ItemRefused: the budget is exceeded.
        """
        if rows > self.rows_left:
            raise ItemRefused(
                "too_many_rows",
                f"the algorithm needs {rows} more rows, but has {self.rows_left:.0f} rows left",
            )
        self.rows_left -= rows

    def remember(self, read: object, windows: ReadWindows) -> None:
        """Remember the windows that `read` names. Forget the oldest if there are too many."""
        if len(self.windows) == _MOST_READ:
            del self.windows[next(iter(self.windows))]
        self.windows[read] = windows

    def count_known(self, rows: int, tokens: int) -> None:
        """Count rows that the item has already, and charge them like other rows.

        Raises:
            ItemRefused: the budget is exceeded.
        """
        self.spend(rows)
        self.cached += rows
        self.input_tokens += tokens


class RowCoalescer:
    """Returns the outputs of one encoder's rows. All encoders of a process share one `cache`."""

    def __init__(self, *, digest: str, cache: RowCache, batcher: Batcher) -> None:
        self._digest = digest
        self.cache = cache
        self._submissions = batcher.submissions
        self._in_flight: dict[RowKey, Row] = {}
        self._cached = self._coalesced = self._computed = 0

    async def ask(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> list[FloatArray]:
        """Return the output of each encoding, in order, and update the counts in `caller`.

        Raises:
            BackendError: the row budget is exceeded, a row failed, or the queue stayed full.
        """
        caller.spend(len(encodings))
        if not encodings:
            return []
        await self.wait_for_room(encodings, kind=kind, caller=caller)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_end(_: RowWaiter, error: BackendError | None) -> None:
            if not ended.done():
                ended.set_result(None) if error is None else ended.set_exception(error)

        waiter = RowWaiter(len(encodings), deadline=caller.deadline, on_end=on_end)
        try:
            self.begin(waiter, encodings, kind=kind, caller=caller)
            await ended
        except BaseException:  # withdraw rows that nobody needs, even after a cancellation
            self.abandon(waiter, caller)
            raise
        return self.collect(waiter, caller)

    def begin(
        self,
        waiter: RowWaiter,
        encodings: Sequence[Encoding],
        *,
        kind: OutputKind,
        caller: RowCaller,
    ) -> None:
        """Take each row from the cache, join it to an equal row in flight, or submit it.

        The queue must have room for the rows. Unlike `ask`, this method does not check the item's
        row budget. If all rows are cached, the waiter ends immediately. When the waiter ends with
        success, the caller must call `collect`. After an error, the caller must call `abandon`.

        Raises:
            BackendError: the rows would be late, or cannot run.
        """
        fresh: list[Row] = []
        for index, encoding in enumerate(encodings):
            caller.input_tokens += len(encoding.ids)
            self._place(encoding, index, waiter, kind, caller, fresh)
        if fresh:
            self._submit(fresh, caller)

    def collect(self, waiter: RowWaiter, caller: RowCaller) -> list[FloatArray]:
        """Return the outputs of a waiter that has ended, and update the counts in `caller`."""
        waiter.leave()
        caller.rows += waiter.rows
        caller.cached += len(waiter.values) - waiter.rows
        caller.tokens += waiter.tokens
        return waiter.values

    def abandon(self, waiter: RowWaiter, caller: RowCaller) -> None:
        """Stop waiting after an error or a cancellation, and withdraw rows that nobody needs."""
        caller.wasted += waiter.rows
        pending = waiter.leave()
        if pending:
            caller.wasted += self._withdraw(pending)

    def statistics(self) -> RowStatistics:
        """Return how many rows were cached, coalesced and computed, and the cache's size."""
        return RowStatistics(
            cached_rows=self._cached,
            coalesced_rows=self._coalesced,
            computed_rows=self._computed,
            entries=len(self.cache),
            size_bytes=self.cache.size_bytes,
            evicted_rows=self.cache.evicted,
        )

    def has_room(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> bool:
        """Return whether the queue has room for the rows of these encodings."""
        tokens = sum([len(each.ids) for each in encodings])
        fits, flow = self._submissions.fits, (caller.lane, caller.scope)
        return fits(len(encodings), tokens, flow) or fits(
            *self._size(encodings, kind, caller), flow
        )

    def has_room_for_any(self, encodings: Sequence[Encoding]) -> bool:
        """Return whether the queue has room for these rows, whatever their tenant is."""
        return self._submissions.fits_any(
            len(encodings), sum([len(each.ids) for each in encodings])
        )

    def has(self, encoding: Encoding, *, kind: OutputKind, caller: RowCaller) -> bool:
        """Return whether an output is cached, or in flight early enough for a caller."""
        key: RowKey = (caller.scope, self._digest, kind, encoding.key)
        row = self._in_flight.get(key)
        return self.cache.holds(key) or (row is not None and _may_wait(row, caller))

    async def wait_for_room(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> None:
        """Wait until `has_room` is true.

        The caller must then call `begin` before it awaits anything else.

        Raises:
            Overloaded: the queue stayed full.
        """
        if not self.has_room(encodings, kind=kind, caller=caller):
            await self._submissions.wait_for_room(
                lambda: self._size(encodings, kind, caller),
                flow=(caller.lane, caller.scope),
                deadline=caller.deadline,
            )

    def _size(
        self, encodings: Sequence[Encoding], kind: OutputKind, caller: RowCaller
    ) -> tuple[int, int]:
        """Return the number and the tokens of rows that are neither cached nor in flight."""
        keys = ((caller.scope, self._digest, kind, each.key) for each in encodings)
        fresh = {
            key: len(each.ids)
            for each, key in zip(encodings, keys, strict=True)
            if not self.cache.holds(key)
            and ((row := self._in_flight.get(key)) is None or not _may_wait(row, caller))
        }
        return len(fresh), sum(fresh.values())

    def _place(
        self,
        encoding: Encoding,
        index: int,
        waiter: RowWaiter,
        kind: OutputKind,
        caller: RowCaller,
        fresh: list[Row],
    ) -> None:
        key: RowKey = (caller.scope, self._digest, kind, encoding.key)
        if (value := self.cache.get(key)) is not None:
            self._cached += 1
            waiter.deliver(index, value, computed_tokens=0)
            return
        in_flight = self._in_flight.get(key)
        if in_flight is not None and _may_wait(in_flight, caller) and in_flight.join(waiter, index):
            self._coalesced += 1
            waiter.pending.append(in_flight)
            return
        span = caller.span
        if span is not NO_SPAN:
            span = span.child("row", {"tokens": len(encoding.ids)})
        row = Row(
            encoding=encoding,
            key=key,
            deadline=caller.deadline,
            span=span,
            settle=self._settle,
            lane=caller.lane,
            request=caller.reservation.request if caller.reservation is not None else None,
            waiters=[(waiter, index)],
        )
        if in_flight is not None and in_flight.is_live:
            row.slower = in_flight
        self._in_flight[key] = row
        fresh.append(row)
        waiter.pending.append(row)

    def _withdraw(self, rows: list[Row]) -> int:
        """Remove rows without callers from the queue, and return their number."""
        withdrawn = self._submissions.withdraw(rows)
        for row in withdrawn:
            row.span.end("withdrawn")
            if self._in_flight.get(row.key) is row:
                del self._in_flight[row.key]
        return len(withdrawn)

    def _submit(self, fresh: list[Row], caller: RowCaller) -> None:
        reservation = caller.reservation
        try:
            work = self._submissions.submit(fresh, reservation)
        except BackendError as error:
            for row in fresh:
                row.span.end(error.code)
                row.is_dequeued = True
                if row.slower is not None:
                    self._in_flight[row.key] = row.slower
                else:
                    del self._in_flight[row.key]
            raise
        if reservation is not None and reservation.admission is self._submissions.admission:
            caller.work += work
        for row in fresh:
            if row.slower is not None:
                row.overtake(row.slower)

    def _settle(self, row: Row, value: FloatArray | BackendError) -> None:
        if self._in_flight.get(row.key) is row:
            del self._in_flight[row.key]
        waiters, row.waiters = row.waiters, []
        if isinstance(value, BackendError):
            for waiter, _ in waiters:
                waiter.fail(value)
            return
        self._computed += 1
        self.cache.put(row.key, value)
        # The row counts as computed for the first caller that still waits.
        tokens = row.length
        for waiter, index in waiters:
            counted = tokens if waiter.is_awaited else 0
            waiter.deliver(index, value, computed_tokens=counted)
            tokens -= counted


def _may_wait(row: Row, caller: RowCaller) -> bool:
    """Return whether a caller can use a row in flight: the row is live and runs early enough."""
    is_urgent = caller.deadline < row.due - _WAIT_TOLERANCE or row.flow[0] == BULK != caller.lane
    return row.is_live and (row.is_dequeued or not is_urgent)
