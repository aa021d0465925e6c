"""Publishes the usage events of requests, counts requests, and logs a line for a share of them.

Hits of one caller, task and model in one event-loop iteration become one event, a run. The run is
in the log before any of the answers is written, because the write coalescer calls `commit` first.

Lines never hold inputs or keys. A thread writes the collected lines once a second, so that they
delay no answer. The number of lines a second is bounded. One more line counts the omitted lines.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Self
from zlib import crc32

from sluicegate.gateway.api.request_state import RequestIds, RequestState
from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events.base import EventPublisher
from sluicegate.gateway.events.hit_run import HitRun
from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.gateway.telemetry.guard_verdicts import GuardVerdicts
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.types import (
    ID_DIGITS,
    Principal,
    RequestEvent,
    RequestId,
    RevisionUsage,
    Source,
    Usage,
)

_COMPUTED = "computed"
_FEWEST_IDS, _MOST_IDS = 4, 4096
"""That are reserved at once for a run."""
FAULT: Final = 500
"""The lowest status that is logged."""
_INTERVAL = 1.0
_ITEMS = [source.value for source in Source]
_log = logging.getLogger("sluicegate.gateway.requests")
Fields = dict[str, Any]  # of a line of JSON


class RequestLines:
    """Collects up to `per_second` lines. Requests that did not fail take at most half of them.

    The id alone decides whether a request is in the sampled `share`, so everybody who knows the id
    comes to the same decision.
    """

    def __init__(self, *, share: float, per_second: int) -> None:
        self.every = round(1 / share) if share > 0 else 0
        """One request of this many that did not fail is logged. With 0, none is logged."""
        self._most = per_second
        self._lines: list[tuple[int, Fields]] = []
        self._left_out = 0
        self._polling = PeriodicTask(
            self.write, interval=_INTERVAL, failure="lines of requests were not written"
        )

    async def __aenter__(self) -> Self:
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)
        await self.write()

    def add(self, state: RequestState, duration: float) -> None:
        """Log a request that has ended after `duration` seconds, if it failed or is sampled."""
        if state.status >= FAULT or state.is_fault:
            self._add(logging.WARNING, state, duration)
        elif self.every and is_sampled(state.id, self.every):
            self._add(logging.INFO, state, duration)

    def add_hits(self, run: HitRun, stem: str, count: int, duration: float) -> None:
        """Log the sampled hits among the `count` hits of a run that begins with the first."""
        every = self.every
        if not every:
            return
        first = run.first + (every - 1 - run.first) % every
        for number in range(first, run.first + count, every):
            if self._has_room(logging.INFO):
                id_ = f"{stem}{number:0{ID_DIGITS}x}"
                self._lines.append((logging.INFO, _fields_of_hit(id_, run.pattern, duration)))

    def add_failure(
        self, id_: str, route: str, principal: Principal | None, *, status: int, code: str
    ) -> None:
        """Log a request to a route without inference, if it failed."""
        if status < FAULT or not self._has_room(logging.WARNING):
            return
        fields = {"request_id": id_, "route": route, "status": status, "code": code}
        if principal is not None:
            fields |= {"tenant": principal.tenant, "key": principal.key}
        self._lines.append((logging.WARNING, fields))

    async def write(self) -> None:
        """Write the collected lines."""
        lines, left_out = self._lines, self._left_out
        self._lines, self._left_out = [], 0
        if lines or left_out:
            await asyncio.to_thread(_write, lines, left_out)

    def _add(self, level: int, state: RequestState, duration: float) -> None:
        if self._has_room(level):
            self._lines.append((level, _fields(state, duration)))

    def _has_room(self, level: int) -> bool:
        most = self._most if level >= logging.WARNING else (self._most + 1) // 2
        if len(self._lines) < most:
            return True
        self._left_out += 1
        return False


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
        event = state.event(wall=self._wall, now=self.now(), region=self._region)
        if event is not None:
            if state.publish is None:
                self._events.publish(event)
            else:
                state.publish(event, state.passing)
        self.count_request(state)
        usage = state.usage
        model, rows, tokens = state.model, usage.rows, usage.tokens
        if not model:
            return
        if usage.computed == usage.items:
            self._metrics.items(
                model, state.revision, _COMPUTED, usage.items, rows=rows, tokens=tokens
            )
        else:
            self._count_mixed(state)
        for used in state.arms:
            self._metrics.revision_items(model, used)

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

    def sampled_verdicts(self, verdicts: GuardVerdicts) -> None:
        """Keep the decision of a guard that a replayed hit repeats."""
        self._metrics.sample(verdicts)

    def _keep(self, run: HitRun) -> None:
        count = run.count
        if not count:
            self._events.release_bytes(run.event.size)
            run.max_count = 0
            return
        id_ = self.ids.numbered(run.first)
        duration = self.now() - run.started
        self._events.publish_encoded(run.event.payload(id_, self._time, duration, count))
        self._metrics.request(run.route, run.model, self.clock() - run.began, count)
        self._metrics.items(run.model, run.revision, run.source, count)
        if not run.is_plain:
            self._count_more(run, count)
        self._lines.add_hits(run, self.ids.prefix, count, duration)
        run.first += count
        run.reserved_ids -= count
        run.count = run.max_count = 0

    def _count_more(self, run: HitRun, count: int) -> None:
        if run.arm:
            self._metrics.revision_items(run.model, RevisionUsage(arm=run.arm, hit=count))
        self._metrics.count(run.counts, count)


def is_sampled(id_: RequestId, every: int) -> bool:
    """Return whether a request is one of `every` requests, by the number at the end of its id."""
    try:
        number = int(id_[-ID_DIGITS:], 16)
    except ValueError:  # an id that was given to it
        number = crc32(id_.encode())
    return number % every == every - 1


def _fields(state: RequestState, duration: float) -> Fields:
    principal, admission = state.principal, state.admitted - state.started
    fields: Fields = {
        "request_id": state.id,
        "trace_id": state.span.traceparent[3:35],
        "route": state.route.template,
        "task": state.task,
        "model": state.model,
        "revision": state.revision,
        "tenant": "" if principal is None else principal.tenant,
        "key": "" if principal is None else principal.key,
        "status": state.status,
        "code": state.code,
        "items": _items(state.usage),
        "rows": state.usage.rows,
        "tokens": state.usage.tokens,
        "phases": {
            "admission": round(admission, 6),
            "inference": round(max(0.0, duration - admission), 6),
        },
        "request_bytes": 0 if state.parsed is None else state.parsed.length,
        "answer_bytes": state.answer_length,
    }
    told = {name: value for name, value in fields.items() if value not in ("", 0)}
    return told | {"duration": round(duration, 6)}


def _fields_of_hit(id_: str, event: RequestEvent, duration: float) -> Fields:
    return {
        "request_id": id_,
        "task": event.task,
        "model": event.model,
        "revision": event.revision,
        "tenant": event.tenant,
        "key": event.key,
        "status": event.status,
        "items": _items(event.usage),
        "duration": round(duration, 6),
    }


def _items(usage: Usage) -> dict[str, int]:
    return {name: count for name in _ITEMS if (count := getattr(usage, name))}


def _write(lines: list[tuple[int, Fields]], left_out: int) -> None:
    for level, fields in lines:
        _log.log(level, "request", extra=fields)
    if left_out:
        _log.warning("lines of requests were left out", extra={"count": left_out})
