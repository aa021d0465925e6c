"""Admits work that is expected to end before its deadline and reserves queue time for it.

An item may submit its rows in several steps, and a request its items. The reservation covers all of
them: work that is admitted later does not take its place.
"""

from collections.abc import Callable

import msgspec

from backends.batching.fair_queue import BULK, FlowKey
from backends.batching.lateness_margin import LatenessMargin
from backends.batching.meter import Meter
from backends.batching.queue import DequeuedBatch, RowQueue
from backends.batching.row import RequestWork
from backends.errors import Overloaded

# Late rows of one request that count.
_MAX_WASTED_ROWS = 8
# The least `retry_after`.
MIN_RETRY_AFTER = 0.1


class QueueReservation(msgspec.Struct, kw_only=True, eq=False):
    """Reserves queue time for the work of one admitted item, until its rows are queued.

    `remaining` is the work that is not queued yet, in predicted seconds. `request` is shared by all
    items that were admitted together.
    """

    admission: "Admission"
    flow: FlowKey
    request: RequestWork
    remaining: float
    is_begun: bool = False

    def release(self) -> None:
        """Release what is not queued: the item submits no more."""
        self.admission.give_back(self, self.remaining)


class Admission:
    """Predicts when work would end, from the work before it and the measured pace.

    All work is in predicted seconds of the cost model. Belongs to the event loop, but for `learn`,
    which worker threads call; these write queue and meter meanwhile.
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
        """`competing` returns what other models do on the device beside so many seconds of this."""
        self.name = name
        self._competing = competing
        self._queue = queue
        self._meter = meter
        self._margin = margin
        self._reserved: dict[FlowKey, float] = {}
        self.reserved = 0.0
        """The admitted work that is not queued yet. Worker threads may read it."""
        self.incoming = 0.0
        """The work of submitted rows that the queue does not hold yet."""

    def queued_seconds(self) -> float:
        """Return the seconds that the waiting interactive rows will take.

        Bulk rows wait behind what comes later, and in pauses: they tell callers nothing.
        """
        return (self._queue.interactive_seconds + self.incoming) / self._meter.pace

    def pending(self) -> float:
        """Return the seconds that the admitted work takes the device. Any thread may call it."""
        waiting = self._queue.interactive_seconds + self.incoming
        return (waiting + self._meter.running + self.reserved) / self._meter.own_pace

    def backlog(self) -> float:
        """Return the seconds that all waiting rows will take, at least a tenth of one."""
        return max(MIN_RETRY_AFTER, (self._queue.seconds + self.incoming) / self._meter.pace)

    def admit(
        self, work_per_item: list[float], *, time_left: float, flow: FlowKey
    ) -> list[QueueReservation]:
        """Admit items that are to end together, and reserve for each its expected work.

        Raises:
            Overloaded: not all of them would be in time; none is admitted.
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
        """Admit work into the queue, from its item's reservation as far as that goes.

        Raises:
            Overloaded: it would be late. An item that has begun is never refused: its work so far
                would be wasted.
        """
        if reservation is None or reservation.admission is not self:
            self.check(work, time_left=deadline - self._meter.clock(), flow=flow)
            return
        excess = work - reservation.remaining
        self.give_back(reservation, min(work, reservation.remaining))
        if excess > 0.0 and not reservation.is_begun:
            # Estimates are of the mean: only what is surely late is refused after all.
            time_left = deadline - self._meter.clock()
            self.check(work, time_left=time_left, flow=flow, factor=1.0)
        reservation.is_begun = True

    def give_back(self, reservation: QueueReservation, work: float) -> None:
        """Release a part of a reservation, which is queued or will not come."""
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
        """Learn that a request missed its deadline, with so many wasted rows of one item.

        Without any it had a single row, which the queue counts: it expired there, or ran late.
        """
        if not request.is_late and (rows or request.items > 1):
            request.is_late = True
            # A few are enough: the factor must not jump with a single large request.
            late = min(max(rows, request.items), _MAX_WASTED_ROWS)
            self._margin.count(in_time=0, late=late)

    def learn(self, batch: DequeuedBatch, *, started: float) -> None:
        """Learn pace, slowness and margin from a batch that has just run in this thread."""
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
        """Refuse work that would be late; `factor` on predicted waits defaults to the learned one.

        Before it run the waiting work of its flow and the fair share of each other flow meanwhile.

        Raises:
            Overloaded: with the time until such work would be admitted.
        """
        reserved = self.reserved
        waiting = self._queue.seconds + self.incoming + self._meter.running + reserved
        if waiting <= _ROUNDING_ERROR or flow[0] == BULK:
            # Bulk rows wait behind others for as long as they have time.
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
                f"`{self.name}` is too busy to answer in the time left; try again later",
                retry_after=max(MIN_RETRY_AFTER, late),
            )

    def _lateness(self, work: float, factor: float, time_left: float) -> float:
        """Return by how many seconds `work` would end late; a negative number means in time.

        The recent pace shows how much of the device other models took in the past. Their admitted
        work also counts, because it shows an overload that begins.
        """
        late = work * factor / self._meter.pace - time_left
        if late > 0.0:
            return late
        alone = work / self._meter.own_pace
        return max(late, (alone + self._competing(alone)) * factor - time_left)


# Sums that differ from zero by rounding only.
_ROUNDING_ERROR = 1e-9
