"""Lets work in that is expected to end within its time, and promises it what it has not queued yet.

An item may bring its rows in several steps, and a request its items. What was let in as a whole is
promised as a whole: work that comes later does not take its place.
"""

from backends.batching.fair_queue import BULK, FlowKey
from backends.batching.lateness_margin import LatenessMargin
from backends.batching.meter import Meter
from backends.batching.queue import RowQueue
from backends.batching.row import RequestWork
from backends.errors import Overloaded

# Rows in vain of one request that count.
_MOST_IN_VAIN = 8
# No caller is asked to come back earlier.
SOONEST = 0.1


class Reservation:
    """The work of one item that was let in. `left` is what of it is not queued yet, in seconds.

    `request` is shared by all items that were let in together.
    """

    __slots__ = ("admission", "flow", "is_begun", "left", "request")

    def __init__(
        self, admission: "Admission", flow: FlowKey, work: float, request: RequestWork
    ) -> None:
        self.admission = admission
        self.flow = flow
        self.request = request
        self.left = work
        self.is_begun = False

    def release(self) -> None:
        """Give back what is left: the item brings no more."""
        self.admission.give_back(self, self.left)


class Admission:
    """Predicts when work would end: by what is before it and the pace at which that is done.

    All work is in predicted seconds of the cost model. Belongs to the loop; the queue and the meter
    may be written by lanes meanwhile.
    """

    def __init__(self, *, name: str, queue: RowQueue, meter: Meter, margin: LatenessMargin) -> None:
        self._name = name
        self._queue = queue
        self._meter = meter
        self._margin = margin
        self._reserved: dict[FlowKey, float] = {}
        self.reserved = 0.0
        """The work that was let in and is not queued yet. Lanes may read it."""
        self.incoming = 0.0
        """The work of rows that are on their way into the queue."""

    def admit(self, works: list[float], *, time_left: float, flow: FlowKey) -> list[Reservation]:
        """Let items in that are to end together, and promise each what it is expected to bring.

        Raises:
            Overloaded: not all of them would be in time; none is let in.
        """
        self.check(sum(works), time_left=time_left, flow=flow)
        if flow[0] != BULK:
            self._reserved[flow] = self._reserved.get(flow, 0.0) + sum(works)
            self.reserved += sum(works)
        else:
            works = [0.0] * len(works)
        request = RequestWork(sum(works), items=len(works))
        return [Reservation(self, flow, work, request) for work in works]

    def take(
        self, work: float, *, time_left: float, flow: FlowKey, reservation: Reservation | None
    ) -> None:
        """Let work into the queue, out of its item's promise as far as that goes.

        Raises:
            Overloaded: it would be late. Who has begun is never refused: that would be work for
                nothing.
        """
        if reservation is None or reservation.admission is not self:
            self.check(work, time_left=time_left, flow=flow)
            return
        beyond = work - reservation.left
        self.give_back(reservation, min(work, reservation.left))
        if beyond > 0.0 and not reservation.is_begun:
            # Estimates are of the mean: only what is surely late is refused after all.
            self.check(work, time_left=time_left, flow=flow, factor=1.0)
        reservation.is_begun = True

    def give_back(self, reservation: Reservation, work: float) -> None:
        """Note that so much of a promise is queued, or will not come."""
        reservation.left -= work
        reservation.request.reserved -= work
        if reservation.flow not in self._reserved:
            return
        left = self._reserved[reservation.flow] - work
        if left > _NOTHING:
            self._reserved[reservation.flow] = left
            self.reserved -= work
        else:
            del self._reserved[reservation.flow]
            self.reserved = sum(self._reserved.values())

    def note_late(self, request: RequestWork, rows: int) -> None:
        """Learn that a request ran out of time, of which an item had so many rows in vain.

        Without any it had a single one, of which the queue tells: it expired there, or ran late.
        """
        if not request.is_late and (rows or request.items > 1):
            request.is_late = True
            # A few of them say it: the factor must not jump with a single large request.
            in_vain = min(max(rows, request.items), _MOST_IN_VAIN)
            self._margin.count(in_time=0, in_vain=in_vain)

    def check(
        self, work: float, *, time_left: float, flow: FlowKey, factor: float | None = None
    ) -> None:
        """Refuse what would be late; predicted waits are longer by `factor`, a learned one.

        Before it is what waits of its flow, and of each other one its fair share meanwhile.

        Raises:
            Overloaded: with the time until such work would be taken.
        """
        reserved = self.reserved
        waiting = self._queue.seconds + self.incoming + self._meter.running + reserved
        if waiting <= _NOTHING or flow[0] == BULK:
            # Bulk rows wait behind others for as long as they have time.
            return
        slower = (self._margin.factor if factor is None else factor) / self._meter.pace
        late = (waiting + work) * slower - time_left
        if late > 0.0:
            own = self._reserved.get(flow, 0.0)
            others = sum(min(each, own + work) for each in self._reserved.values()) - min(
                own, own + work
            )
            waiting += self._queue.ahead(flow, work) - self._queue.seconds
            waiting += own + others - reserved
            late = (waiting + work) * slower - time_left
        if late > 0.0:
            raise Overloaded(
                f"`{self._name}` is too busy to answer in the time left; try again later",
                retry_after=max(SOONEST, late),
            )


# What rounding leaves of sums.
_NOTHING = 1e-9
