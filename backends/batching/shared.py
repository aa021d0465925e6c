"""Answers rows from the row cache, joins equal rows in flight, and submits the others."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from backends.batching.admission import QueueReservation
from backends.batching.batcher import Batcher
from backends.batching.fair_queue import BULK, INTERACTIVE
from backends.batching.row import Row, RowKey, RowWaiter
from backends.errors import BackendError, ItemRefused
from backends.telemetry.spans import NO_SPAN, Span
from backends.types import Encoding, FloatArray, OutputKind, RowStatistics

# What an entry costs beside its value: key, objects, a place in the dictionary.
_ENTRY_BYTES = 400
# A caller with so many seconds less than a row's callers gets an equal row of its own.
_JOIN_TOLERANCE = 0.25


class RowCache:
    """Caches the rows used last, within a number of bytes. Keys are compared, not hashes."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[RowKey, FloatArray] = OrderedDict()
        self.size_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: RowKey) -> FloatArray | None:
        """Return a cached row."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def holds(self, key: RowKey) -> bool:
        """Return whether a row is cached, without marking it as used."""
        return key in self._values

    def put(self, key: RowKey, value: FloatArray) -> None:
        """Add a row; evict those used longest ago."""
        size = _size(key, value)
        if key in self._values or size > self._max_bytes:
            return
        self._values[key] = value
        self.size_bytes += size
        while self.size_bytes > self._max_bytes:
            old_key, old = self._values.popitem(last=False)
            self.size_bytes -= _size(old_key, old)
            self.evicted += 1


def _size(key: RowKey, value: FloatArray) -> int:
    return value.nbytes + len(key[3]) + _ENTRY_BYTES


class HostedItems(msgspec.Struct):
    """Counts the items of a call that are with the processes of algorithms now."""

    count: int = 0


class RowCaller(msgspec.Struct, kw_only=True, eq=False):
    """Identifies the item that rows are for, and counts the rows computed or cached for it.

    `tokens` are those of computed rows, `input_tokens` those of all rows that it asked for.
    `truncate` says whether texts may be truncated, `truncated_from` the tokens of the longest that
    was. `work` is the predicted seconds of rows that it queued at the batcher of its reservation;
    `wasted` counts rows that were withdrawn, or computed beside one that failed or was late.
    `rows_left` is how many rows it may still use: algorithms of model owners have a budget.
    `hosted` is that of the item's call.
    `arm` names a model and the revision of it that answers, `shadow` the one it is mirrored to;
    `label` is the first of the answer.
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
    arm: tuple[str, str] | None = None
    shadow: str = ""
    label: str = ""

    def spend(self, rows: int) -> None:
        """Deduct rows from the budget.

        Raises:
            ItemRefused: the budget is exceeded.
        """
        if rows > self.rows_left:
            raise ItemRefused(
                "too_many_rows",
                f"the algorithm asks for {rows} rows more and may ask for {self.rows_left:.0f}",
            )
        self.rows_left -= rows


class SharedRows:
    """Answers the rows of one encoder, over a cache that all encoders of a process share."""

    def __init__(self, *, digest: str, cache: RowCache, batcher: Batcher) -> None:
        self._digest = digest
        self.cache = cache
        self._submissions = batcher.submissions
        self._in_flight: dict[RowKey, Row] = {}
        self._cached = self._joined = self._computed = 0

    async def ask(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> list[FloatArray]:
        """Return the output of each encoding, in order, and count to `caller` what was computed.

        Raises:
            BackendError: they are too many for the item, one of them failed, or there was no room
                for them in time.
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
        except BaseException:  # a cancellation, too: no row may run in vain
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
        """Look up, join or submit the row of each encoding, for which the queue has room.

        The item has no budget of rows; `ask` is for one that has. The waiter ends at once where all
        rows are cached. When it ends with an error, or this fails, the caller must `abandon` it,
        else `collect` its values.

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
        """Return the values of a waiter that has ended, and count its rows to `caller`."""
        waiter.leave()
        caller.rows += waiter.rows
        caller.cached += len(waiter.values) - waiter.rows
        caller.tokens += waiter.tokens
        return waiter.values

    def abandon(self, waiter: RowWaiter, caller: RowCaller) -> None:
        """Stop waiting after a failure or a cancellation: no row may run in vain."""
        caller.wasted += waiter.rows
        pending = waiter.leave()
        if pending:
            caller.wasted += self._withdraw(pending)

    def statistics(self) -> RowStatistics:
        """Return how rows were answered; the sizes are of the shared cache."""
        return RowStatistics(
            known_rows=self._cached,
            joined_rows=self._joined,
            computed_rows=self._computed,
            entries=len(self.cache),
            size_bytes=self.cache.size_bytes,
            evicted_rows=self.cache.evicted,
        )

    def has_room(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> bool:
        """Whether the queue takes the rows of these encodings now."""
        tokens = sum([len(each.ids) for each in encodings])
        fits, flow = self._submissions.fits, (caller.lane, caller.scope)
        return fits(len(encodings), tokens, flow) or fits(
            *self._size(encodings, kind, caller), flow
        )

    def has_room_for_any(self, encodings: Sequence[Encoding]) -> bool:
        """Whether the queue takes these rows now, whosever they are."""
        return self._submissions.fits_any(
            len(encodings), sum([len(each.ids) for each in encodings])
        )

    async def wait_for_room(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> None:
        """Wait until `has_room`; then the rows are to be begun at once.

        Raises:
            Overloaded: there was no room in time.
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
        """Return how many rows are neither cached nor in flight, and their tokens."""
        keys = ((caller.scope, self._digest, kind, each.key) for each in encodings)
        fresh = {
            key: len(each.ids)
            for each, key in zip(encodings, keys, strict=True)
            if not self.cache.holds(key)
            and ((row := self._in_flight.get(key)) is None or not _may_join(row, caller))
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
        if in_flight is not None and _may_join(in_flight, caller) and in_flight.join(waiter, index):
            self._joined += 1
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
        """Remove rows without callers from the queue; return how many those are."""
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
        # The row counts as computed for the first of its callers that still waits.
        tokens = row.length
        for waiter, index in waiters:
            counted = tokens if waiter.is_awaited else 0
            waiter.deliver(index, value, computed_tokens=counted)
            tokens -= counted


def _may_join(row: Row, caller: RowCaller) -> bool:
    """Whether to wait for a row in flight: not if it is lost or would run too late."""
    is_urgent = caller.deadline < row.due - _JOIN_TOLERANCE or row.flow[0] == BULK != caller.lane
    return row.is_live and (row.is_dequeued or not is_urgent)
