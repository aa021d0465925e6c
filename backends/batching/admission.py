"""Admits items that are expected to end before their deadline, and reserves device time for them.

An item may submit its rows in several steps. Its reservation covers the rows of all steps, so that
items that are admitted later do not take the reserved time.
"""

from collections.abc import Callable

import msgspec

from sluicegate.backends.batching.fair_queue import BULK, FlowKey
from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.queue import DequeuedBatch, RowQueue
from sluicegate.backends.batching.row import RequestWork
from sluicegate.backends.errors import Overloaded

# At most this many late rows of one request count towards the lateness margin.
_MAX_WASTED_ROWS = 8
# The least `retry_after`, in seconds.
MIN_RETRY_AFTER = 0.1


class QueueReservation(msgspec.Struct, kw_only=True, eq=False):
    """Reserves device time for one admitted item, until its rows are queued.

    `remaining` is the time for rows that are not queued yet, in predicted seconds. All items that
    were admitted together share one `request`.
    """

    admission: "Admission"
    flow: FlowKey
    request: RequestWork
    remaining: float
    is_begun: bool = False

    def release(self) -> None:
        """Release the remaining time, because the item submits no more rows."""
        self.admission.give_back(self, self.remaining)


class Admission:
    """Predicts when new rows would end, from the measured pace and the rows that run earlier.

    "Work" is the time that the cost model predicts for rows, in seconds. The pace is the work done
    per second. Worker threads call `learn`, and any thread may call `pending`. All other methods
    belong to the event loop. Worker threads change the queue and the meter meanwhile.
    """

    def __init__(
        self,
        *,
        name: str,
        queue: RowQueue,
        meter: Meter,
        margin: LatenessMargin,
        competing: Callable[[float], float] = lambda _: 0.0,
    ) -> None:
        """`competing` returns how long other models use the device while this model works."""
        self.name = name
        self._competing = competing
        self._queue = queue
        self._meter = meter
        self._margin = margin
        self._reserved: dict[FlowKey, float] = {}
        self.reserved = 0.0
        """The admitted work whose rows are not queued yet. Worker threads may read it."""
        self.incoming = 0.0
        """The work of submitted rows that are not in the queue yet."""

    def queued_seconds(self) -> float:
        """Return the seconds until the waiting interactive rows have run.

        Bulk rows do not count, because later interactive rows overtake them.
        """
        return (self._queue.interactive_seconds + self.incoming) / self._meter.pace

    def pending(self) -> float:
        """Return for how many seconds all admitted work will keep the device busy. Thread-safe."""
        waiting = self._queue.interactive_seconds + self.incoming
        return (waiting + self._meter.running + self.reserved) / self._meter.own_pace

    def backlog(self) -> float:
        """Return the seconds until all waiting rows have run, but at least 0.1."""
        return max(MIN_RETRY_AFTER, (self._queue.seconds + self.incoming) / self._meter.pace)

    def admit(
        self, work_per_item: list[float], *, time_left: float, flow: FlowKey
    ) -> list[QueueReservation]:
        """Admit all items of one request, and reserve each item's expected work.

        Raises:
            Overloaded: an item would be late. Then no item is admitted.
        """
        self.check(sum(work_per_item), time_left=time_left, flow=flow)
        if flow[0] != BULK:
            self._reserved[flow] = self._reserved.get(flow, 0.0) + sum(work_per_item)
            self.reserved += sum(work_per_item)
        else:
            work_per_item = [0.0] * len(work_per_item)
        request = RequestWork(reserved=sum(work_per_item), items=len(work_per_item))
        return [
            QueueReservation(admission=self, flow=flow, request=request, remaining=work)
            for work in work_per_item
        ]

    def take(
        self, work: float, *, deadline: float, flow: FlowKey, reservation: QueueReservation | None
    ) -> None:
        """Admit rows into the queue, and deduct their work from the item's reservation.

        Once an item has begun, its rows are always admitted, because refusing them would waste its
        earlier rows.

        Raises:
            Overloaded: the rows would be late.
        """
        if reservation is None or reservation.admission is not self:
            self.check(work, time_left=deadline - self._meter.clock(), flow=flow)
            return
        excess = work - reservation.remaining
        self.give_back(reservation, min(work, reservation.remaining))
        if excess > 0.0 and not reservation.is_begun:
            # The reservation was an estimate, and more work than estimated is normal. Refuse the
            # rows only if they would be late even without the safety factor.
            time_left = deadline - self._meter.clock()
            self.check(work, time_left=time_left, flow=flow, factor=1.0)
        reservation.is_begun = True

    def give_back(self, reservation: QueueReservation, work: float) -> None:
        """Release reserved work whose rows are queued or will not come."""
        reservation.remaining -= work
        reservation.request.reserved -= work
        if reservation.flow not in self._reserved:
            return
        remaining = self._reserved[reservation.flow] - work
        if remaining > _ROUNDING_ERROR:
            self._reserved[reservation.flow] = remaining
            self.reserved -= work
        else:
            del self._reserved[reservation.flow]
            self.reserved = sum(self._reserved.values())

    def note_late(self, request: RequestWork, rows: int) -> None:
        """Record that an item of a request missed its deadline and wasted `rows` rows.

        Only the first late item of a request counts. A request with a single item that wasted no
        rows does not count, because `learn` has already counted its expired row.
        """
        if not request.is_late and (rows or request.items > 1):
            request.is_late = True
            # Bounded, so that one large request does not move the factor too far.
            late = min(max(rows, request.items), _MAX_WASTED_ROWS)
            self._margin.count(in_time=0, late=late)

    def learn(self, batch: DequeuedBatch, *, started: float) -> None:
        """Learn pace, slowness and lateness from a batch that has just run in this thread."""
        ended = self._meter.clock()
        self._margin.learn(batch, ended)
        if batch.rows:
            self._meter.end(
                release=batch.release,
                predicted=batch.seconds,
                work=batch.work,
                took=ended - started,
                has_waiting=batch.more,
                has_reserved=self.reserved > 0.0,
            )
            self._queue.slowness = self._meter.slowness

    def check(
        self, work: float, *, time_left: float, flow: FlowKey, factor: float | None = None
    ) -> None:
        """Check that new work would end in time.

        `work` is the predicted time of the new rows, in seconds. They wait for all earlier rows of
        their flow (one tenant and traffic class). Meanwhile, each other flow gets its fair share of
        the device. The predicted wait is multiplied by `factor`, which defaults to the learned
        safety factor.

        Raises:
            Overloaded: the work would be late. `retry_after` tells when it could be admitted.
        """
        reserved = self.reserved
        waiting = self._queue.seconds + self.incoming + self._meter.running + reserved
        if waiting <= _ROUNDING_ERROR or flow[0] == BULK:
            # Bulk rows may wait until their deadline.
            return
        if factor is None:
            factor = self._margin.factor
        late = self._lateness(waiting + work, factor, time_left)
        if late > 0.0:
            own = self._reserved.get(flow, 0.0)
            others = sum(min(each, own + work) for each in self._reserved.values()) - min(
                own, own + work
            )
            waiting += self._queue.ahead(flow, work) - self._queue.seconds
            waiting += own + others - reserved
            late = self._lateness(waiting + work, factor, time_left)
        if late > 0.0:
            raise Overloaded(
                f"`{self.name}` is too busy to answer before the deadline; try again later",
                retry_after=max(MIN_RETRY_AFTER, late),
            )

    def _lateness(self, work: float, factor: float, time_left: float) -> float:
        """Return by how many seconds `work` would end late; negative if it would be in time.

        The recent pace already includes the time that other models used the device. The result also
        considers the admitted work of other models, because an overload appears first in that work.
        """
        late = work * factor / self._meter.pace - time_left
        if late > 0.0:
            return late
        alone = work / self._meter.own_pace
        return max(late, (alone + self._competing(alone)) * factor - time_left)


# A sum below this is zero, apart from rounding errors.
_ROUNDING_ERROR = 1e-9
