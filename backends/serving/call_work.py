"""Admits the items of a call by their predicted work, and reserves device time for them."""

from collections.abc import Callable, Sequence

from sluicegate.backends.batching.admission import QueueReservation
from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import HostedItems
from sluicegate.backends.batching.fair_queue import BULK
from sluicegate.backends.errors import Overloaded
from sluicegate.backends.serving.residency import DeclaredEncoder
from sluicegate.backends.serving.work_estimates import WorkEstimates, kinds_of, predict_work
from sluicegate.wire.protocol import TOKEN_TASKS, Call, CallItem, ModelInfo


class CallWork:
    """Admits the items of a call: all together if they are one request, else one by one."""

    def __init__(
        self,
        call: Call,
        info: ModelInfo,
        *,
        estimates: WorkEstimates,
        batcher: Batcher,
        portions: Callable[[], int],
        encoders: Sequence[DeclaredEncoder] = (),
    ) -> None:
        """`encoders` are all encoders that the call may use."""
        self._call = call
        self._kinds = kinds_of(call)
        self._estimates = estimates
        self._batcher = batcher
        self._predicted = predict_work(call, info, batcher.executor.cost.alone)
        self._is_atomic = call.atomic or len(call.items) == 1
        self._has_rows = call.task not in TOKEN_TASKS
        self._reservations: list[QueueReservation | None] = [None] * len(call.items)
        self._portions = portions
        self._seen = batcher.batches, portions()
        self._encoders = encoders
        self._is_begun = False
        self.hosted = HostedItems()

    def has_progressed(self) -> bool:
        """Return whether the call has made progress since this method was last called.

        A call makes progress in each of these cases:

        - The model has run a batch.
        - The tokenizer has read text while no row was waiting or running.
        - A pause of bulk batches makes the rows of the call wait.
        - An algorithm host (a process for a model owner's algorithm) is running an item of the
          call. The host limits the item's time itself.
        """
        (batches, portions), batcher = self._seen, self._batcher
        self._seen = batcher.batches, self._portions()
        has_read = portions != self._seen[1] and batcher.is_idle
        is_paused = self._call.lane == BULK and batcher.submissions.queue.is_paused
        return batches != self._seen[0] or has_read or is_paused or self.hosted.count > 0

    @property
    def is_loaded(self) -> bool:
        """Whether all encoders that the call may use are loaded, its own since admission."""
        running = [each.running for each in self._encoders]
        if running and (running[0] is None or running[0].batcher is not self._batcher):
            return False
        return None not in running

    def begin(self) -> None:
        """Keep the encoders loaded until `close`."""
        self._is_begun = True
        for each in self._encoders:
            each.users += 1

    def backlog(self) -> float:
        """Return the seconds until the waiting rows have run.

        Refusals use this as `retry_after`.
        """
        return self._batcher.admission.backlog()

    def admit(self) -> None:
        """Reserve the work of all items together, if they are one request.

        If the items are separate requests, only check that the smallest item would be in time. A
        call that needs only the tokenizer is always admitted.

        Raises:
            Overloaded: the request would be late, or no item of the call could be admitted.
        """
        if not self._has_rows:
            return
        try:
            self._admit()
        except Overloaded:
            self._batcher.submissions.count_refused(len(self._call.items))
            raise

    def _admit(self) -> None:
        call, batcher = self._call, self._batcher
        scopes = {item.scope for item in call.items} if not self._is_atomic else ()
        flows = [(call.lane, scope) for scope in scopes or (call.items[0].scope,)]
        if all(map(batcher.submissions.is_full, flows)):
            raise Overloaded("the queue is full; try again later", retry_after=self.backlog())
        ratio = self._estimates.ratio(self._kinds)
        works = [seconds * ratio for seconds in self._predicted]
        if self._is_atomic:
            self._reservations[:] = batcher.admission.admit(
                works, time_left=min([item.remaining for item in call.items]), flow=flows[0]
            )
            return
        # Refuse before tokenization if not even the smallest item would be in time.
        batcher.admission.check(
            min(works),
            time_left=max(item.remaining for item in call.items),
            # Of the call's flows, the flow with the fewest waiting rows, whose new rows would run
            # first.
            flow=min(flows, key=batcher.submissions.held),
        )

    def reservation(
        self, index: int, item: CallItem, *, time_left: float
    ) -> QueueReservation | None:
        """Return the reservation of an item.

        If the items were not reserved together by `admit`, reserve this item now.

        Raises:
            Overloaded: the item would be late.
        """
        if not self._is_atomic and self._has_rows:
            work = self._predicted[index] * self._estimates.ratio(self._kinds)
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
        """Release the rest of an item's reservation, and learn from the item's actual work.

        `brought` is the actual work.

        `late_rows` is the number of rows that a late item wasted. It is `None` for an item that
        ended in time.
        """
        reservation = self._reservations[index]
        if reservation is None:
            return
        if late_rows is not None:
            reservation.admission.note_late(reservation.request, late_rows)
        if reservation.remaining:
            reservation.release()
        self._reservations[index] = None
        self._estimates.learn(
            self._kinds, predicted=self._predicted[index], brought=brought, is_done=is_done
        )

    def close(self) -> None:
        """Release the encoders, and the reservations of items that have not begun."""
        if self._is_begun:
            self._is_begun = False
            for each in self._encoders:
                each.users -= 1
        for reservation in self._reservations:
            if reservation is not None:
                reservation.release()
        self._reservations = [None] * len(self._reservations)
