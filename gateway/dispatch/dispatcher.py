"""Sends open items to backends: gathers them into calls, retries, hedges and fails over.

Only items of requests that miss one item are gathered. The dispatcher routes these items together
at the end of an event-loop iteration. An item for a busy backend then waits a moment for more.
"""

import asyncio
import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Self

import msgspec

from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.backend_call import (
    BackendCall,
    is_changed,
    is_misplaced,
    verdict_on,
)
from sluicegate.gateway.dispatch.budget import RetryBudget
from sluicegate.gateway.dispatch.hedging import Hedging
from sluicegate.gateway.dispatch.overload import OverloadCauses
from sluicegate.gateway.dispatch.statistics import (
    CallStatistics,
    DispatchStatistics,
    EndpointCounts,
)
from sluicegate.gateway.dispatch.work import OpenItem, Work, are_open, settle
from sluicegate.gateway.errors import DeadlineExceeded, Overloaded
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.tasks import log_failure
from sluicegate.gateway.telemetry.phases import PhaseDurations
from sluicegate.gateway.telemetry.spans import Attributes, Span
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import (
    BackendId,
    Criticality,
    Endpoint,
    ItemFailure,
    ItemOutcome,
    RegionName,
    Source,
)
from sluicegate.gateway.upstream.base import BackendClient, CallFailed, Cause
from sluicegate.wire.protocol import (
    CALL_PATH,
    TOKEN_TASKS,
    Done,
    Failed,
    Report,
    Task,
    read_embed_item,
)

GATHERING_DELAY = 0.002
"""Seconds for which items are gathered into one call to a busy backend, as Nagle's algorithm
gathers bytes. An idle backend gets the first item at once. So does a busy backend whose last item
came longer ago than this, because no other item is likely to come in time. But after several items
were answered together, their clients are likely to send others together."""
_POLL_INTERVAL = 0.01
# Causes after which the same backend may be tried again where there is no other.
_LOST = frozenset({Cause.UNREACHABLE, Cause.CUT})
# Read by C code, without a step in Python for each item.
_body = attrgetter("body")
_EMBED = Task.EMBED
_encode = msgspec.msgpack.Encoder().encode
_Kind = tuple[int, int, bytes, str, bool]
"""What items must share to travel in one call: model, task, parameters, lane and truncation."""


class Dispatcher:
    """Implements `WorkRunner` over the fleet and the backend client.

    An async context manager that owns the calls in flight: at its exit they have `drain` seconds.
    `reprobe` is called with endpoints whose state may have changed.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        client: BackendClient,
        reprobe: Callable[[Endpoint], None],
        clock: Callable[[], float],
        tracer: Tracer | None = None,
        drain: float = 0.0,
        phases: PhaseDurations | None = None,
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._reprobe = reprobe
        self._tracer = tracer or Tracer()
        self._drain = drain
        self._phases = phases or PhaseDurations()
        self._loop = asyncio.get_running_loop()
        self._budget = RetryBudget(clock=clock)
        self._overload = OverloadCauses(fleet)
        self._counters = DispatchStatistics()
        self._endpoints = EndpointCounts()
        self.hedging = Hedging()
        self._arrived: dict[tuple[_Kind, Criticality], list[OpenItem]] = {}
        """The items of this event-loop iteration that are routed at its end."""
        self._joinable: dict[Hashable, BackendCall] = {}
        """Calls that were not sent yet, by the endpoint's identity."""
        self._calls: dict[BackendCall, None] = {}
        self._busy: dict[BackendId, int] = {}
        """The number of calls in flight by backend, without idle backends."""
        self._last_item: dict[BackendId, float] = {}
        """When the last item came for each busy backend, or several were answered together."""
        self._is_closed = False
        fleet.on_lost(self._endpoint_lost)

    async def __aenter__(self) -> Self:
        self._is_closed = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        until = self._loop.time() + self._drain
        # A callback for the last of them would cost every request.
        while self.in_progress and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)
        self._is_closed = True
        arrived, self._arrived = self._arrived, {}
        for items in arrived.values():
            self._settle_failed(items, failures.CANCELLED)
        for call in tuple(self._calls):
            self._settle_failed(call.items, failures.CANCELLED, call)
            self._abandon(call)

    def start(self, items: Sequence[OpenItem]) -> None:
        """Settle the items, which are of one work, each as soon as its outcome is known.

        Failures are outcomes, too. Items that are open at the deadline, or when they are cancelled,
        fail.
        """
        work = items[0].work
        if self._is_closed:  # requests that wait for them ask again
            self._settle_failed(items, failures.CANCELLED)
        elif len(items) > 1 or (work.traceparent and self._tracer.records(work.traceparent)):
            self._guarded(items, partial(self._send_together, items))
        else:
            # By identity: models cannot be hashed, and members of enumerations are by a method.
            kind = (id(work.model), id(work.task), work.parameters, work.lane, work.truncate)
            arrived = self._arrived.get((kind, work.criticality))
            if arrived is not None:
                arrived.append(items[0])
                return
            if not self._arrived:
                self._loop.call_soon(self._send_arrived)
            self._arrived[kind, work.criticality] = [items[0]]

    def cancel(self, items: Collection[OpenItem]) -> None:
        """Settle items of one work as cancelled. Cancel the calls that then have no open item."""
        cancelled = are_open(items)
        if not cancelled:
            return
        self._settle_failed(cancelled, failures.CANCELLED)
        work = cancelled[0].work
        for call in tuple(self._calls):
            # Only shared calls have items of several works.
            is_of_these = call.holds_any(cancelled) if call.is_shared else call.work is work
            if is_of_these and not call.open_items():
                self._abandon(call)

    @property
    def in_progress(self) -> int:
        """The number of calls that are not over, and of groups of items that are not routed yet."""
        return len(self._calls) + len(self._arrived)

    def statistics(self) -> DispatchStatistics:
        """Return counts since the start."""
        return copy.deepcopy(self._counters)

    def endpoint_statistics(self) -> CallStatistics:
        """Return counts by endpoint and region since the start; they are not copied."""
        return self._endpoints.statistics

    def _guarded(
        self,
        items: Sequence[OpenItem],
        step: Callable[[], None],
        call: BackendCall | None = None,
    ) -> None:
        """Take a step for items, of `call`. If it fails, nobody may wait for them without end."""
        try:
            step()
        except Exception as bug:  # noqa: BLE001 - as above
            self._after_bug(items, bug)
            if call is not None and call in self._calls:
                self._abandon(call)

    def _send_arrived(self) -> None:
        arrived, self._arrived = self._arrived, {}
        for (kind, _), items in arrived.items():
            self._guarded(items, partial(self._send_each, kind, items))

    def _admitted(self, items: Sequence[OpenItem]) -> list[OpenItem]:
        """Settle what is too late or shed, and return the rest, which is open."""
        now, work = self._loop.time(), items[0].work
        found = [item for item in items if item.outcome is None and item.work.deadline > now]
        if len(found) < len(items):
            late = [item for item in items if item.work.deadline <= now]
            self._settle_failed(late, failures.EXPIRED)
        retry_after = self._fleet.shed(work.model, work.criticality) if found else None
        if retry_after is None:
            self._budget.earn(len(found))
            self.hedging.share = self._fleet.routing.hedge_share
            self.hedging.earn(len(found))
            return found
        if found[0].work is found[-1].work:
            self._settle_failed(found, failures.shed(retry_after))
            return []
        for item in found:  # callers must not all come back at one time
            after = self._fleet.shed(work.model, work.criticality) or retry_after
            self._settle_failed([item], failures.shed(after))
        return []

    def _send_each(self, kind: _Kind, items: Sequence[OpenItem]) -> None:
        """Send items of different requests, each to the backend that it would go to alone."""
        for endpoint, own in self._route(self._admitted(items), together=False):
            self._gather(kind, endpoint, own)

    def _send_together(self, items: Sequence[OpenItem]) -> None:
        """Send the items of one request to as few backends as possible."""
        for endpoint, share in self._route(self._admitted(items), together=True):
            self._send_alone(self._new_call(endpoint, items[0].work, own=len(items)), share)

    def _route(
        self, items: Sequence[OpenItem], *, together: bool
    ) -> list[tuple[Endpoint, Sequence[OpenItem]]]:
        """Return the endpoints that get the items first, each with its items."""
        if not items:
            return []
        model = items[0].work.model
        is_embedded = items[0].work.task is _EMBED
        affinities = list(map(_text_of if is_embedded else _body, items))
        shares = self._fleet.spread(model, affinities, together=together)
        if not shares:
            is_gone = self._fleet.is_gone(model)
            self._settle_failed(items, failures.GONE if is_gone else failures.unavailable())
        preferred = self._fleet.preferred_region(model)
        routed: list[tuple[Endpoint, Sequence[OpenItem]]] = []
        for share in shares:
            if share.endpoint.region != preferred:
                self._endpoints.spilled(share.endpoint, len(share.items), preferred)
            own = items if len(shares) == 1 else [items[place] for place in share.items]
            routed.append((share.endpoint, own))
        return routed

    def _gather(self, kind: _Kind, endpoint: Endpoint, items: Sequence[OpenItem]) -> None:
        """Add items to the call that the endpoint gets next."""
        key = (id(endpoint), kind)
        call = self._joinable.get(key)
        backend, now = endpoint.backend, self._loop.time()
        waits = backend in self._busy and now - self._last_item.get(backend, -1) < GATHERING_DELAY
        self._last_item[backend] = now
        while items:
            if call is None or call not in self._calls:  # it may have been given up
                call = self._joinable[key] = self._new_call(endpoint, items[0].work, is_shared=True)
                call.key = key
                if waits:
                    close = partial(self._close_and_send, call)
                    self._loop.call_later(GATHERING_DELAY, self._guarded, call.items, close, call)
            count = call.add(items)
            self._fleet.started(endpoint, count)
            # `began` is the average of the times at which the call's items were added.
            call.began += (self._loop.time() - call.began) * count / len(call.items)
            items = items[count:]
            if items or not waits:
                self._close_and_send(call)
                call = None

    def _close_and_send(self, call: BackendCall) -> None:
        """Send a call that others could join, unless it was sent or given up."""
        if self._joinable.get(call.key) is call:
            del self._joinable[call.key]
        if call in self._calls and not call.is_sent:
            self._send(call)

    def _send_alone(self, call: BackendCall, items: Sequence[OpenItem]) -> None:
        """Send a call of these items, which no others join."""
        call.add(items)
        self._fleet.started(call.endpoint, len(items))
        self._send(call)

    def _send_again(self, call: BackendCall, endpoint: Endpoint, items: Sequence[OpenItem]) -> None:
        """Send items of `call` to another endpoint."""
        other = self._new_call(
            endpoint, items[0].work, own=call.own, tried=call.tried, is_shared=call.is_shared
        )
        self._send_alone(other, items)

    def _new_call(
        self,
        endpoint: Endpoint,
        work: Work,
        *,
        own: int = 1,
        tried: tuple[BackendId, ...] = (),
        is_shared: bool = False,
    ) -> BackendCall:
        call = BackendCall(
            endpoint,
            work=work,
            latencies=self.hedging.of((work.model.info.name, work.task)),
            began=self._loop.time(),
            own=own,
            tried=tried,
            is_shared=is_shared,
        )
        call.queueing = self._fleet.queueing(endpoint)
        call.phase_began = self._phases.clock()
        self._calls[call] = None
        return call

    def _send(self, call: BackendCall) -> None:
        """Call the endpoint of `call`."""
        endpoint, now = call.endpoint, self._loop.time()
        idle_timeout = self._fleet.routing.attempt_timeout
        deadlines = [item.work.deadline for item in call.items if item.outcome is None]
        if not deadlines:  # all were cancelled
            self._abandon(call)
            return
        call.is_sent = True
        deadline = max(deadlines)
        call.has_full_timeout = deadline - now >= idle_timeout
        call.expiry_timer = self._loop.call_at(min(deadlines), self._expire, call)
        late = call.latencies.late
        # An item that hangs a model owner's algorithm must not hang it at a second backend.
        may_hedge = self.hedging.share > 0 and call.work.model.info.algorithm != "custom"
        if may_hedge and now + late < deadline:
            call.hedge_timer = self._loop.call_later(late, self._hedge, call)
        self._counters.calls += 1
        self._busy[endpoint.backend] = self._busy.get(endpoint.backend, 0) + 1
        traceparent = "" if call.is_shared else call.work.traceparent
        if traceparent and self._tracer.records(traceparent):
            call.span = self._span(call, traceparent)
            traceparent = call.span.traceparent
        round_trip = self._fleet.called(endpoint)
        try:
            call.started_call = self._client.start_call(
                endpoint,
                call.message(now, round_trip=round_trip, traceparent=traceparent),
                deadline=deadline,
                idle_timeout=idle_timeout,
                receive=partial(self._receive, call),
                on_end=partial(self._call_ended, call),
            )
        except Exception as error:  # noqa: BLE001 - treated as one that ends later
            self._loop.call_soon(self._call_ended, call, error)

    def _span(self, call: BackendCall, parent: str) -> Span:
        """Begin the span of a call. The backend's spans become children of this span."""
        attributes: Attributes = {
            "http.request.method": "POST",
            "url.path": CALL_PATH,
            "sluicegate.region": call.endpoint.region,
            "sluicegate.backend": call.endpoint.backend,
            "sluicegate.items": len(call.items),
        }
        return self._tracer.span(
            f"POST {CALL_PATH}", parent=parent, kind="client", attributes=attributes
        )

    def _receive(self, call: BackendCall, frames: Sequence[Done | Failed]) -> None:
        is_first_failure, answered = not call.failed, call.answered
        ended = call.take(frames)
        took = self._loop.time() - call.began
        if call.is_shared:
            counted = 0 if call.work.task in TOKEN_TASKS else call.answered - answered
            self._fleet.answered(call.endpoint, counted, took, ended=call.ended_places())
        if call.failed and is_first_failure:
            # Failures of one event-loop iteration are retried together, before slower items end.
            self._loop.call_soon(self._retry_failed, call)
        if len(ended) > 1 and call.is_shared:
            self._last_item[call.endpoint.backend] = self._loop.time()
        if ended:
            call.latencies.note(took, len(ended))
            self._settle(ended, call)

    def _call_ended(self, call: BackendCall, end: Report | BaseException) -> None:
        if call not in self._calls:  # given up
            return
        try:
            if isinstance(end, Report):
                self._after_report(call, end)
            elif isinstance(end, CallFailed):
                self._counters.failed_calls += 1
                verdict = verdict_on(end, has_full_timeout=call.has_full_timeout)
                self._fleet.record(call.endpoint, verdict)
                self._after_failure(call, end)
            elif isinstance(end, asyncio.CancelledError):
                unanswered = list(filter(call.is_only_hope_of, call.open_items()))
                self._settle_failed(unanswered, failures.CANCELLED, call)
            else:
                self._after_bug(call.items, end)
        except Exception as bug:  # noqa: BLE001 - nobody may wait for the items without end
            self._after_bug(call.items, bug)
        finally:
            self._release(call, None if isinstance(end, Report) else end)

    def _abandon(self, call: BackendCall) -> None:
        if call.started_call is not None:
            call.started_call.cancel()
        self._release(call, asyncio.CancelledError())

    def _release(self, call: BackendCall, error: BaseException | None) -> None:
        """Note that `call` is over."""
        del self._calls[call]
        call.end()
        # The call refers to this one: cycles are left to the garbage collector, at its price.
        call.started_call = None
        for timer in (call.hedge_timer, call.expiry_timer):
            if timer is not None:
                timer.cancel()
        self._phases.end("dispatch", call.phase_began)
        self._fleet.ended(call.endpoint, call.in_flight)
        call.in_flight = 0
        if call.is_sent:
            left = self._busy.pop(call.endpoint.backend) - 1
            if left:
                self._busy[call.endpoint.backend] = left
            else:
                self._last_item.pop(call.endpoint.backend, None)
            self._endpoints.call_ended(call.endpoint, error)
        if call.span is not None:
            call.span.__exit__(None if error is None else type(error), error, None)

    def _after_report(self, call: BackendCall, report: Report) -> None:
        self._fleet.record(
            call.endpoint,
            call.verdict(),
            report,
            # The time of a call that runs no model does not show how busy the backend is.
            items=0 if call.work.task in TOKEN_TASKS else call.answered,
            rows=call.rows,
            took=None if call.is_shared else self._loop.time() - call.began,
        )
        if call.waiting or call.duplicated:
            # The report ends the call: the backend sent no outcome for items that still wait.
            self._after_failure(call, CallFailed(Cause.CUT, "items were left unanswered"))

    def _after_failure(self, call: BackendCall, error: CallFailed) -> None:
        """Retry the unanswered items of `call` at another backend, if that may help."""
        if error.cause is Cause.UNREACHABLE or is_changed(error):
            self._reprobe(call.endpoint)
        unanswered = list(filter(call.is_only_hope_of, call.open_items()))
        call.end()
        if not unanswered:
            return
        failure = failures.of_call(error)
        is_lost = error.cause in _LOST
        if error.retryable or is_misplaced(error):
            # A retry is free if the backend is gone, or does not serve the model. Any other refusal
            # costs 1 a request: that backend did no work either, but the next may refuse as well.
            is_free = is_lost or is_misplaced(error)
            is_one = error.cause is Cause.REFUSED and not call.is_shared
            credit = 1 if is_one else len(unanswered)
            left = [(item, failure) for item in unanswered]
            self._retry(
                call,
                left,
                credit=0 if is_free else credit,
                may_repeat=is_lost,
                # One of the items may be what the backend died of.
                in_halves=is_lost and call.is_shared,
            )
        else:
            self._settle_failed(unanswered, failure, call)

    def _after_bug(self, items: Iterable[OpenItem], bug: BaseException) -> None:
        log_failure(bug)
        self._settle_failed(items, failures.UNEXPECTED)

    def _retry_failed(self, call: BackendCall) -> None:
        failed, call.failed = call.failed, []
        retry = partial(self._retry, call, failed, credit=len(failed))
        self._guarded([item for item, _ in failed], retry)

    def _retry(
        self,
        call: BackendCall,
        left: Iterable[tuple[OpenItem, ItemFailure]],
        *,
        credit: int,
        may_repeat: bool = False,
        in_halves: bool = False,
    ) -> None:
        """Try the items at the next candidate; those that may not be retried fail as given.

        `credit` is what retrying all of them takes from the retry budget. `in_halves` sends them to
        two candidates, if there are so many.
        """
        left = [(item, failure) for item, failure in left if call.is_only_hope_of(item)]
        now = self._loop.time()
        late = [item for item, _ in left if item.work.deadline <= now or self._is_closed]
        if late:
            failure = failures.CANCELLED if self._is_closed else failures.EXPIRED
            self._settle_failed(late, failure, call)
            left = [(item, failure) for item, failure in left if item.outcome is None]
        if not left:
            return
        self._overload.note(call.endpoint, call.work.model, left)
        # Overload is answered at once instead of trying a silent backend.
        with_silent = any(failure.code != Overloaded.code for _, failure in left)
        endpoint = self._next(call, left[0][0], may_repeat=may_repeat, with_silent=with_silent)
        granted = 0 if endpoint is None else len(left)
        if granted and credit:
            whole = (call.work.atomic and not call.is_shared) or credit < granted
            spent = self._budget.spend(min(credit, granted), whole=whole)
            granted = (granted if spent else 0) if whole else spent
            self._counters.denied += len(left) - granted
        self._settle([(item, _failed(failure, call)) for item, failure in left[granted:]], call)
        if endpoint is not None and granted:
            self._count_retried(call, granted)
            items = [item for item, _ in left[:granted]]
            if in_halves and (middle := len(items) // 2):
                second = self._next(
                    call, items[middle], with_silent=with_silent, without=endpoint.backend
                )
                self._send_again(call, second or endpoint, items[middle:])
                items = items[:middle]
            self._send_again(call, endpoint, items)

    def _count_retried(self, call: BackendCall, items: int) -> None:
        self._counters.retried += items
        self._endpoints.retried(call.endpoint, items)

    def _hedge(self, call: BackendCall) -> None:
        """Try the items that wait at a second endpoint as well."""
        waiting = are_open(call.waiting)
        endpoint = self._second_candidate(call, waiting)
        if endpoint is not None and self.hedging.spend(len(waiting)):
            self._counters.hedged += len(waiting)
            self._endpoints.hedged(call.endpoint, len(waiting))
            self._duplicate(call, endpoint, waiting)

    def _endpoint_lost(self, lost: Endpoint) -> None:
        """Try the items that wait for `lost`, which is not ready now, at a second endpoint, too."""
        for call in tuple(self._calls):
            if call.endpoint.backend == lost.backend:
                self._guarded(call.open_items(), partial(self._go_on_elsewhere, call), call)

    def _go_on_elsewhere(self, call: BackendCall) -> None:
        self._close_and_send(call)
        waiting = are_open(call.waiting)
        second = self._second_candidate(call, waiting)
        if second is not None:
            self._count_retried(call, len(waiting))
            self._duplicate(call, second, waiting)

    def _second_candidate(self, call: BackendCall, items: Sequence[OpenItem]) -> Endpoint | None:
        """Return a second candidate for items that wait, `None` where there is none."""
        # No second one that is silent as well: both may only be busy.
        return self._next(call, items[0], with_silent=False) if items else None

    def _duplicate(self, call: BackendCall, endpoint: Endpoint, items: Sequence[OpenItem]) -> None:
        """Try items that wait at `endpoint` as well."""
        self._send_again(call, endpoint, items)
        call.duplicate(items, endpoint)

    def _next(
        self,
        call: BackendCall,
        item: OpenItem,
        *,
        with_silent: bool,
        may_repeat: bool = False,
        without: BackendId | None = None,
    ) -> Endpoint | None:
        fleet, tried = self._fleet, call.tried
        if len(tried) >= fleet.routing.attempts:
            return None
        candidates = fleet.candidates(call.work.model, item.body, with_silent=with_silent)
        for endpoint in candidates:
            if endpoint.backend not in tried and endpoint.backend != without:
                return endpoint
        if not may_repeat or not candidates:
            return None
        return min(candidates, key=lambda endpoint: tried.index(endpoint.backend))

    def _expire(self, call: BackendCall) -> None:
        """Settle the items whose time is over. With the last open one, cancel the call."""
        now = self._loop.time()
        late = [item for item in call.open_items() if item.work.deadline <= now]
        self._settle_failed(late, failures.EXPIRED, call)
        if left := call.open_items():
            earliest = min(item.work.deadline for item in left)
            call.expiry_timer = self._loop.call_at(earliest, self._expire, call)
        elif call in self._calls:
            self._abandon(call)

    def _settle_failed(
        self, items: Iterable[OpenItem], failure: ItemFailure, call: BackendCall | None = None
    ) -> None:
        outcome = _failed(failure, call)
        self._settle([(item, outcome) for item in items], call)

    def _settle(
        self, outcomes: Sequence[tuple[OpenItem, ItemOutcome]], call: BackendCall | None = None
    ) -> None:
        """Settle those of the items that are open. `call` may have answered them."""
        failed = 0
        late: list[OpenItem] = []
        for item, outcome in outcomes:
            if outcome.failure is not None and item.outcome is None:
                failed += 1
                self._counters.count_failure(outcome.failure.code)
                if outcome.failure.code == DeadlineExceeded.code:
                    late.append(item)
        if late and call is not None:
            outcomes = self._overload.explain(outcomes, [call, *self._others(call, late)])
        self._counters.computed += settle(outcomes) - failed

    def _others(self, call: BackendCall, items: Iterable[OpenItem]) -> list[BackendCall]:
        """Return the other calls that may answer some of the items."""
        twice = [item for item in items if item.calls > 1]
        others = self._calls if twice else ()
        return [other for other in others if other is not call and other.holds_any(twice)]


def _failed(failure: ItemFailure, call: BackendCall | None) -> ItemOutcome:
    region = call.endpoint.region if call is not None else RegionName("")
    return ItemOutcome(source=Source.FAILED, failure=failure, region=region)


def _text_of(item: OpenItem) -> bytes:
    """Return the affinity of an item of `embed`: its text, so that one run serves all outputs."""
    found = read_embed_item(item.body)
    return item.body if found is None else _encode(found.input)
