"""Batches the usage events of memory hits of one event-loop iteration.

Hits of one caller, task and model become one event, a run. It is in the log before any of their
answers is written: the write coalescer calls `commit` first.
"""

import time
from collections.abc import Callable

from gateway.api.request_state import RequestIds
from gateway.errors import EventLogUnavailable
from gateway.events.base import EventPublisher
from gateway.events.hit_run import HitRun
from gateway.telemetry.metrics import GatewayMetrics
from gateway.types import RequestId, Source

_IDS_AT_ONCE = 4096


class HitEventBatch:
    """The runs of the present event-loop iteration."""

    def __init__(
        self,
        *,
        ids: RequestIds,
        events: EventPublisher,
        metrics: GatewayMetrics,
        loop_time: Callable[[], float],
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ids = ids
        self._events = events
        self._metrics = metrics
        self._loop_time = loop_time
        self._wall = wall
        self._runs: list[HitRun] = []
        self._time = 0
        self.started = 0.0
        """The loop's time of the iteration's first hit."""

    def join(self, run: HitRun) -> bool:
        """Reserve room in `run` for hits of this iteration; `False` where the log has none."""
        if not self._runs:
            self.started = self._loop_time()
            self._time = self._wall()
        elif run.room:
            self._runs.remove(run)
            self._keep(run)
        try:
            self._events.set_aside(run.event.size)
        except EventLogUnavailable:
            return False
        if not run.left:
            run.first = self._ids.reserve(_IDS_AT_ONCE)
            run.left = _IDS_AT_ONCE
        run.room = run.left
        self._runs.append(run)
        return True

    def commit(self) -> None:
        """Publish the events of this iteration."""
        if self._runs:
            for run in self._runs:
                self._keep(run)
            self._runs.clear()

    def publish(self, run: HitRun, id_: RequestId, started: float) -> None:
        """Publish the event of one hit like those of `run`, with an id of its own, at once.

        Raises:
            EventLogUnavailable: the log has no room.
        """
        self._events.set_aside(run.event.size)
        self._publish(run, id_, self._wall(), self._loop_time() - started, 1)

    def _keep(self, run: HitRun) -> None:
        count = run.count
        if not count:
            self._events.give_back(run.event.size)
            run.room = 0
            return
        id_ = self._ids.numbered(run.first)
        self._publish(run, id_, self._time, self._loop_time() - self.started, count)
        run.first += count
        run.left -= count
        run.count = run.room = 0

    def _publish(
        self, run: HitRun, id_: RequestId, time_: int, duration: float, count: int
    ) -> None:
        self._events.publish_encoded(run.event.payload(id_, time_, duration, count))
        self._metrics.request(run.task, 200, duration, count)
        self._metrics.items(run.model, Source.HIT, count)
