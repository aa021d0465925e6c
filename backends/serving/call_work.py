"""The work that a call is expected to bring, and what was promised to its items."""

from backends.batching.admission import Reservation
from backends.batching.batcher import Batcher
from backends.errors import Overloaded
from backends.protocol import Call, CallItem, ModelInfo
from backends.serving.work_estimates import WorkEstimates, count_labels, guess_work


class CallWork:
    """Admits the items of a call: those of one request together, others each by itself."""

    def __init__(
        self, call: Call, info: ModelInfo, *, estimates: WorkEstimates, batcher: Batcher
    ) -> None:
        self._call = call
        self._estimates = estimates
        self._batcher = batcher
        self._guesses = guess_work(call, info, batcher.submissions.work, labels=count_labels(call))
        self._is_whole = call.atomic or len(call.items) == 1
        self._reservations: list[Reservation | None] = [None] * len(call.items)

    @property
    def batches(self) -> int:
        """How many batches the model that the call is for has run since its start."""
        return self._batcher.batches

    def admit(self) -> None:
        """Promise the items of one request what they bring; refuse what nobody would be let in of.

        Raises:
            Overloaded: the request would be late as a whole, or there is no room for any item.
        """
        try:
            self._admit()
        except Overloaded:
            self._batcher.submissions.count_refused(len(self._call.items))
            raise

    def _admit(self) -> None:
        call, batcher = self._call, self._batcher
        flows = [(call.lane, scope) for scope in {item.scope for item in call.items}]
        if all(map(batcher.submissions.is_full, flows)):
            raise Overloaded("the queue is full", retry_after=batcher.admission.backlog())
        ratio = self._estimates.ratio(call)
        works = [guess * ratio for guess in self._guesses]
        if self._is_whole:
            self._reservations[:] = batcher.admission.admit(
                works, time_left=min(item.remaining for item in call.items), flow=flows[0]
            )
            return
        # Refused before its texts are tokenized if not even the least would be in time.
        batcher.admission.check(
            min(works),
            time_left=max(item.remaining for item in call.items),
            # Whose rows would run first.
            flow=min(flows, key=batcher.submissions.held),
        )

    def reservation(self, index: int, item: CallItem, *, time_left: float) -> Reservation | None:
        """Return what was promised to an item, or is now.

        Raises:
            Overloaded: it would be late.
        """
        if not self._is_whole:
            work = self._guesses[index] * self._estimates.ratio(self._call)
            flow = (self._call.lane, item.scope)
            try:
                (self._reservations[index],) = self._batcher.admission.admit(
                    [work], time_left=time_left, flow=flow
                )
            except Overloaded:
                self._batcher.submissions.count_refused(1)
                raise
        return self._reservations[index]

    def end(self, index: int, *, brought: float, is_done: bool, late_rows: int | None) -> None:
        """Give back what an item did not use, and learn from what it brought.

        `late_rows` had run for it, or still waited, when its time was over; `None`: it was not.
        """
        reservation = self._reservations[index]
        if reservation is None:
            return
        if late_rows is not None:
            reservation.admission.note_late(reservation.request, late_rows)
        reservation.release()
        self._reservations[index] = None
        self._estimates.learn(
            self._call, guessed=self._guesses[index], brought=brought, is_done=is_done
        )

    def close(self) -> None:
        """Give back what was promised to items that were never begun."""
        for reservation in self._reservations:
            if reservation is not None:
                reservation.release()
        self._reservations = [None] * len(self._reservations)
