"""Admits rows to the worker threads' queue, if there is room and the rows would be in time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from sluicegate.backends.batching.admission import Admission, QueueReservation
from sluicegate.backends.batching.device import DeviceShare
from sluicegate.backends.batching.fair_queue import FlowKey
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import Outcome, Row
from sluicegate.backends.errors import BackendError, ExecutorDied, Overloaded
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN

# Weight of a new submission in the moving average of predicted seconds per row.
_AVERAGE_WEIGHT = 0.02
# An item waits for room for at most this fraction of the time until its deadline. The rest is for
# running its rows, or for another backend.
_ROOM_WAIT_SHARE = 0.5
# An eighth of a queue is reserved for flows that fill at most a 64th of the queue with rows.
_RESERVE = 8
_FEW = 64
# All items that wait for room have together at most this many times the rows of a full queue.
_MAX_WAITING_QUEUES = 16


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the rows and tokens that wait in a queue."""

    rows: int = 4096
    tokens: int = 262_144

    def admit(self, *, rows: int, tokens: int, held: int) -> bool:
        """Return whether a queue with these totals, including the new rows, is within its limits.

        `held` is the number of rows that belong to the caller's flow (one tenant and traffic
        class). The last eighth of the queue is reserved for flows with few rows, so that no tenant
        can fill the queue.
        """
        few = self.rows // _FEW
        if held <= few or not few:
            return rows <= self.rows and tokens <= self.tokens
        return self.admit_any(rows=rows, tokens=tokens)

    def admit_any(self, *, rows: int, tokens: int) -> bool:
        """Return whether these totals fit into the queue without its reserved eighth."""
        most_rows = self.rows - self.rows // _RESERVE
        return rows <= most_rows and tokens <= self.tokens - self.tokens // _RESERVE


class RoomQueue:
    """Lets items wait for room in the queue, first come, first served.

    `rows` is the number of rows of all waiting items. The object belongs to the event loop.
    """

    def __init__(self) -> None:
        # asyncio's lock is fair. Its holder is the first item and checks for room.
        self._head = asyncio.Lock()
        self._freed = asyncio.Event()
        self._flows: Counter[FlowKey] = Counter()
        self.rows = 0

    def holds(self, flow: FlowKey) -> bool:
        """Return whether an item of this flow waits."""
        return flow in self._flows

    async def wait(
        self, fits: Callable[[], bool], *, rows: int, flow: FlowKey, max_wait: float
    ) -> bool:
        """Wait until this item is first in line and `fits()` is true.

        Return `False` if that takes longer than `max_wait` seconds. If the result is `True`, the
        caller must submit its rows before it awaits anything else.
        """
        self.rows += rows
        self._flows[flow] += 1
        try:
            async with asyncio.timeout(max_wait), self._head:
                while not fits():
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            return False
        finally:
            self.rows -= rows
            self._flows -= Counter([flow])
        return True

    def notify(self) -> None:
        """Let the first item check for room again."""
        self._freed.set()


class SubmissionQueue:
    """Collects the rows of an event-loop iteration and adds them to the queue together.

    `admission` refuses rows that would be late. `limits` is the maximum size of the queue. The
    object belongs to the event loop.
    """

    def __init__(
        self,
        *,
        limits: QueueLimits,
        queue: RowQueue,
        admission: Admission,
        cost: CostModel,
        share: DeviceShare,
        clock: Callable[[], float],
    ) -> None:
        self.queue = queue
        self.admission = admission
        self.refused = 0
        """The number of rows refused since the start."""
        self._limits = limits
        self._cost = cost
        self._share = share
        self._clock = clock
        self._room_queue = RoomQueue()
        self._incoming: list[Row] = []
        self._incoming_flows: Counter[FlowKey] = Counter()
        self._incoming_tokens = 0
        self._average_work = 0.0

    @property
    def rows(self) -> int:
        """The number of waiting rows."""
        return self.queue.rows + len(self._incoming)

    @property
    def tokens(self) -> int:
        """The number of tokens of the waiting rows."""
        return self.queue.tokens + self._incoming_tokens

    def submit(self, rows: Sequence[Row], reservation: QueueReservation | None = None) -> float:
        """Queue an item's rows and return their predicted seconds.

        The queue must have room for the rows.

        Raises:
            Overloaded: the rows would be late.
            ExecutorDied: no worker thread runs any more.
        """
        if self.queue.is_closed:
            name = self.admission.name
            raise ExecutorDied(f"the executor of `{name}` has died; restart the backend")
        tokens, work, now = 0, 0.0, self._clock()
        for row in rows:
            row.submitted = now
            tokens += row.length
            work += self._cost.alone(row.length)
        self._average_work += _AVERAGE_WEIGHT * (work / len(rows) - self._average_work)
        flow, deadline = rows[0].flow, rows[0].deadline
        try:
            self.admission.take(work, deadline=deadline, flow=flow, reservation=reservation)
        except Overloaded:
            self._note_arrival(work)
            self.refused += len(rows)
            raise
        if not self._incoming:
            asyncio.get_running_loop().call_soon(self._flush)
        self._incoming += rows
        self._incoming_flows[flow] += len(rows)
        self._incoming_tokens += tokens
        self.admission.incoming += work
        return work

    def withdraw(self, rows: Sequence[Row]) -> list[Row]:
        """Remove and return the waiting rows among `rows` that have no caller any more."""
        if self._incoming:
            self._flush()
        removed = self.queue.withdraw(rows)
        if removed:
            self._room_queue.notify()
        return removed

    async def wait_for_room(
        self, size: Callable[[], tuple[int, int]], *, flow: FlowKey, deadline: float
    ) -> None:
        """Wait until the queue has room for an item's rows.

        The caller must then submit the rows before it awaits anything else. `size` returns the
        item's number of rows and number of tokens. Both may fall while the item waits, because
        equal rows of other items may end.

        Raises:
            Overloaded: the queue stays full, or too many rows wait for room already.
        """
        rows, _ = size()
        has_room = False
        if self._room_queue.rows + rows <= _MAX_WAITING_QUEUES * self._limits.rows:
            max_wait = (deadline - self._clock()) * _ROOM_WAIT_SHARE
            has_room = await self._room_queue.wait(
                lambda: self.fits(*size(), flow), rows=rows, flow=flow, max_wait=max_wait
            )
        if not has_room:
            raise self._refusal(rows)

    def _refusal(self, rows: int) -> Overloaded:
        """Count refused rows and return the error for a full queue."""
        self.refused += rows
        detail = f"the queue of `{self.admission.name}` is full; try again later"
        return Overloaded(detail, retry_after=self.admission.backlog())

    def count_refused(self, rows: int) -> None:
        """Count refused rows of unknown length."""
        self.refused += rows
        self._note_arrival(rows * self._average_work)

    def _note_arrival(self, work: float) -> None:
        # Refused rows count, too, because a model's share of the device follows the demand. The
        # predicted time counts, not the measured time: a model with small batches is slower than
        # predicted, and that must not increase its share.
        self._share.arrived(work)

    def is_full(self, flow: FlowKey) -> bool:
        """Return whether the queue has no room for even one more row of a flow."""
        return self._room_queue.holds(flow) or not self.fits(1, 1, flow)

    def held(self, flow: FlowKey) -> int:
        """Return how many rows of a flow wait."""
        return self.queue.waiting(flow) + self._incoming_flows[flow]

    def fits_any(self, rows: int, tokens: int) -> bool:
        """Return whether there is room for rows, whatever their tenant is."""
        return self._limits.admit_any(
            rows=self.queue.rows + len(self._incoming) + rows,
            tokens=self.queue.tokens + self._incoming_tokens + tokens,
        )

    def fits(self, rows: int, tokens: int, flow: FlowKey) -> bool:
        """Return whether there is room for rows of a flow.

        An empty queue has room for any item. An item without new rows always fits.
        """
        waiting = self.queue.rows + len(self._incoming)
        if not waiting or not rows:
            return True
        return self._limits.admit(
            rows=waiting + rows, tokens=self.tokens + tokens, held=self.held(flow) + rows
        )

    def close(self, error: BackendError) -> None:
        """Close the queue and fail all waiting rows."""
        self.deliver([(row, error) for row in self.queue.close()])

    def deliver(self, outcomes: Iterable[Outcome]) -> None:
        """Pass outcomes to the callers of rows, and let waiting items check for room."""
        for row, value in outcomes:
            if row.span is not NO_SPAN:
                row.span.end(value.code if isinstance(value, BackendError) else None)
            row.settle(row, value)
        self._room_queue.notify()

    def _flush(self) -> None:
        rows, self._incoming = self._incoming, []
        self._note_arrival(self.admission.incoming)
        self._incoming_flows.clear()
        self._incoming_tokens, self.admission.incoming = 0, 0.0
        if self.queue.is_closed:
            self.deliver([(row, ExecutorDied("the executor has died")) for row in rows])
        else:
            self.queue.put(rows)
