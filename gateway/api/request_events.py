"""Publishes and counts the usage events of requests, and batches the events of hits.

Hits of one caller, task and model in one event-loop iteration become one event, a run. The run is
in the log before any of the answers is written, because the write coalescer calls `commit` first.
"""

import time
from collections.abc import Callable

from gateway.api.request_lines import FAULT, RequestLines
from gateway.api.request_state import RequestIds, RequestState
from gateway.errors import EventLogUnavailable
from gateway.events.base import EventPublisher
from gateway.events.hit_run import HitRun
from gateway.telemetry.metrics import GatewayMetrics
from gateway.types import RequestEvent, RequestId, RevisionUsage

_COMPUTED = "computed"
_FEWEST_IDS, _MOST_IDS = 4, 4096
"""That are reserved at once for a run."""


class RequestEvents:
    """The events of a worker's requests, and the runs of the present event-loop iteration."""

    def __init__(
        self,
        *,
        ids: RequestIds,
        events: EventPublisher,
        metrics: GatewayMetrics,
        loop_time: Callable[[], float],
        lines: RequestLines,
        wall: Callable[[], int] = time.time_ns,
        region: str = "",
    ) -> None:
        self.ids = ids
        self.now = loop_time
        self._events = events
        self._metrics = metrics
        self._region = region
        self._lines = lines
        self._wall = wall
        self._runs: list[HitRun] = []
        self._time = 0
        self.started = 0.0
        """The loop's time of the iteration's first hit."""
        self.clock = metrics.phases.clock
        """Finer than the loop's."""
        self._began = 0.0

    def join(self, run: HitRun) -> bool:
        """Reserve room in `run` for hits of this iteration; `False` where the log has none."""
        if not self._runs:
            self.started = self.now()
            self._began = self.clock()
            self._time = self._wall()
        elif run.max_count:
            self._runs.remove(run)
            self._keep(run)
        try:
            self._events.reserve_bytes(run.event.size)
        except EventLogUnavailable:
            return False
        if not run.reserved_ids:
            # Few at first: with many callers most runs are short, and 2^40 ids are not endless.
            run.ids_at_once = min(2 * run.ids_at_once or _FEWEST_IDS, _MOST_IDS)
            run.first = self.ids.reserve(run.ids_at_once)
            run.reserved_ids = run.ids_at_once
        run.max_count = run.reserved_ids
        run.started = self.started
        run.began = self._began
        self._runs.append(run)
        return True

    def commit(self) -> None:
        """Publish the events of this iteration."""
        if self._runs:
            for run in self._runs:
                self._keep(run)
            self._runs.clear()

    def event_of(self, state: RequestState) -> RequestEvent | None:
        """Return the usage event of a request, `None` without a caller."""
        return state.event(wall=self._wall, now=self.now(), region=self._region)

    def publish(self, state: RequestState) -> None:
        """Append the event of a request to the log, and count it. No answer leaves without one.

        Raises:
            EventLogUnavailable: the log has no room; nothing is counted.
        """
        now = self.now()
        event = state.event(wall=self._wall, now=now, region=self._region)
        if event is not None:
            if state.publish is None:
                self._events.publish(event)
            else:
                state.publish(event, state.passing)
        self.count_request(state)
        usage = state.usage
        if not state.model:
            return
        if usage.computed == usage.items:
            self._metrics.items(
                state.model,
                state.revision,
                _COMPUTED,
                usage.items,
                rows=usage.rows,
                tokens=usage.tokens,
            )
        else:
            self._count_mixed(state)
        for used in state.arms:
            self._metrics.revision_items(state.model, used)

    def count_request(self, state: RequestState) -> None:
        """Count a request by its status, without its items."""
        lines = self._lines
        if lines.every or state.status >= FAULT or state.is_fault:
            lines.add(state, self.now() - state.started)
        route, model, took = state.route.metric_name, state.model, self.clock() - state.began
        self._metrics.request(route, model, took, status=state.status, code=state.code)
        if state.span.is_recorded:
            parent = state.span.traceparent
            self._metrics.exemplar(route, model, took, parent, status=state.status, code=state.code)

    def _count_mixed(self, state: RequestState) -> None:
        for source, count in state.sources():
            if count:
                self._metrics.items(state.model, state.revision, source, count)
        if state.usage.rows:
            self._metrics.work(state.model, rows=state.usage.rows, tokens=state.usage.tokens)

    def sampled_hit(self, run: HitRun, duration: float, traceparent: str) -> None:
        """Keep a replayed hit that is recorded under `traceparent`."""
        self._metrics.exemplar(run.route, run.model, duration, traceparent)

    def _keep(self, run: HitRun) -> None:
        count = run.count
        if not count:
            self._events.release_bytes(run.event.size)
            run.max_count = 0
            return
        id_ = self.ids.numbered(run.first)
        duration = self.now() - run.started
        self._publish(run, id_, self._time, duration, run.began, count)
        self._lines.add_hits(run, self.ids.prefix, count, duration)
        run.first += count
        run.reserved_ids -= count
        run.count = run.max_count = 0

    def _publish(
        self, run: HitRun, id_: RequestId, time_: int, duration: float, began: float, count: int
    ) -> None:
        self._events.publish_encoded(run.event.payload(id_, time_, duration, count))
        self._metrics.request(run.route, run.model, self.clock() - began, count)
        self._metrics.items(run.model, run.revision, run.source, count)
        if run.arm:
            self._metrics.revision_items(run.model, RevisionUsage(arm=run.arm, hit=count))
