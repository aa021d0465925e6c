"""Settles the items of one request: tries them at backends, retries, hedges and fails over."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from gateway.dispatch import failures
from gateway.dispatch.attempt import Attempt, is_changed, is_misplaced, verdict_on
from gateway.dispatch.budget import RetryBudget
from gateway.dispatch.endpoint_counts import EndpointCounts
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.overload import OverloadCauses, shed_each
from gateway.dispatch.statistics import DispatchStatistics
from gateway.dispatch.tracing import CallTracer
from gateway.dispatch.work import Outcomes, Settle, Work, WorkItem
from gateway.errors import Overloaded
from gateway.routing.fleet import Fleet
from gateway.tasks import log_failure
from gateway.telemetry.phases import PhaseDurations
from gateway.types import Endpoint, ItemFailure, ItemOutcome, Source
from gateway.upstream.base import BackendClient, CallFailed, Cause
from wire.protocol import TOKEN_TASKS, Done, Failed, Report

# Causes after which the same backend may be tried again where there is no other.
_LOST = frozenset({Cause.UNREACHABLE, Cause.CUT})
# Read by C code, without a step in Python for each item.
_index, _affinity = attrgetter("index"), attrgetter("affinity")


class DispatchContext(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that all dispatches of a dispatcher share."""

    fleet: Fleet
    client: BackendClient
    reprobe: Callable[[Endpoint], None]
    tracer: CallTracer
    budget: RetryBudget
    overload: OverloadCauses
    hedging: Hedging = msgspec.field(default_factory=Hedging)
    counters: DispatchStatistics = msgspec.field(default_factory=DispatchStatistics)
    endpoints: EndpointCounts = msgspec.field(default_factory=EndpointCounts)
    phases: PhaseDurations = msgspec.field(default_factory=PhaseDurations)
    in_progress: "set[RequestDispatch]" = msgspec.field(default_factory=set)
    """The dispatches that have open items or calls in flight."""


class RequestDispatch:
    """Settles every item of `work` exactly once, at the latest at `deadline`."""

    def __init__(
        self,
        context: DispatchContext,
        work: Work,
        *,
        deadline: float,
        settle: Settle,
        traceparent: str,
    ) -> None:
        self._context = context
        self._work = work
        self._deadline = deadline
        self._on_settled = settle
        self._traceparent = traceparent
        self._loop = asyncio.get_running_loop()
        self._open = set(map(_index, work.items))
        self._attempts: list[Attempt] = []
        self._latencies = context.hedging.of((work.model.info.name, work.task))
        # An item that hangs a model owner's algorithm must not hang it in a second region.
        self._may_hedge = context.hedging.share > 0 and work.model.info.algorithm != "custom"
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send the items to backends.

        An attempt whose items were all answered by others goes on: its backend caches the rows, and
        its latency is measured.
        """
        self._context.in_progress.add(self)
        self._timer = self._loop.call_at(self._deadline, self.give_up, failures.EXPIRED)
        try:
            if self._loop.time() < self._deadline:
                self._start()
            else:
                self.give_up(failures.EXPIRED)
        except Exception as bug:  # noqa: BLE001 - nobody may wait for the items without end
            self._after_bug(self._work.items, bug)
        if not self._open:
            self._leave()

    def cancel(self) -> None:
        """Settle the open items as cancelled, and cancel all calls."""
        self.give_up(failures.CANCELLED)

    def cancel_items(self, indexes: Iterable[int]) -> None:
        """Settle items as cancelled; with its last open one, cancel a call."""
        outcome = ItemOutcome(source=Source.FAILED, failure=failures.CANCELLED)
        cancelled = set(indexes)
        self._settle([(index, outcome) for index in cancelled])
        if not self._open:
            self.cancel()
            return
        for attempt in tuple(self._attempts):
            held = {*attempt.waiting, *attempt.duplicated}
            if self._open.isdisjoint(held) and not cancelled.isdisjoint(held):
                self._abandon(attempt)

    def give_up(self, failure: ItemFailure) -> None:
        """Settle the open items as failed, and cancel all calls."""
        self._settle_failed(self._work.items, failure)
        for attempt in tuple(self._attempts):
            self._abandon(attempt)
        self._leave()

    def _abandon(self, attempt: Attempt) -> None:
        if attempt.started_call is not None:
            attempt.started_call.cancel()
        self._release(attempt, asyncio.CancelledError())

    def _leave(self) -> None:
        """Be in progress no longer, once nothing is open and no call is in flight."""
        if not self._open and not self._attempts:
            self._context.in_progress.discard(self)
            if self._timer is not None:
                self._timer.cancel()

    def _start(self) -> None:
        items, context = self._work.items, self._context
        retry_after = context.fleet.shed(self._work.model, self._work.criticality)
        if retry_after is not None:
            self._settle_shed(retry_after)
            return
        context.budget.earn(len(items))
        context.hedging.earn(len(items))
        affinities = list(map(_affinity, items))
        shares = context.fleet.spread(
            self._work.model, affinities, together=not self._work.is_gathered
        )
        preferred = context.fleet.preferred_region(self._work.model)
        for share in shares:
            context.endpoints.sent(share.endpoint, len(share.items), preferred)
            its = items if len(shares) == 1 else [items[place] for place in share.items]
            self._launch(Attempt(share.endpoint, its))
        if not shares:
            self._settle_failed(items, failures.unavailable())

    def _settle_shed(self, retry_after: float) -> None:
        """Settle all as refused; callers of their own must not all come back at one time."""
        if not self._work.is_gathered:
            self._settle_failed(self._work.items, failures.shed(retry_after))
            return
        self._settle(shed_each(self._work, self._context.fleet, retry_after))

    def endpoint_lost(self, endpoint: Endpoint) -> None:
        """Try the items that wait for `endpoint` at a second one as well: it is not ready now."""
        for attempt in tuple(self._attempts):
            if attempt.endpoint.backend != endpoint.backend:
                continue
            second = self._second_candidate(attempt)
            if second is not None:
                self._count_retried(attempt, self._duplicate(attempt, second))

    def _launch(self, attempt: Attempt) -> None:
        """Call the endpoint of `attempt`."""
        context, endpoint, count = self._context, attempt.endpoint, len(attempt.items)
        now = attempt.started = self._loop.time()
        attempt.began = context.phases.clock()
        remaining = self._deadline - now
        idle_timeout = context.fleet.routing.attempt_timeout
        attempt.has_full_timeout = remaining >= idle_timeout
        self._attempts.append(attempt)
        context.counters.calls += 1
        attempt.queueing = context.fleet.queueing(endpoint)
        left = context.fleet.started(endpoint, count, remaining)
        late = self._latencies.late
        if self._may_hedge and now + late < self._deadline:
            attempt.hedge_timer = self._loop.call_later(late, self._hedge, attempt)
        traceparent = self._traceparent
        if context.tracer.records(traceparent):
            span = context.tracer.on_call(endpoint, items=count, traceparent=traceparent)
            attempt.span, traceparent = span, span.__enter__()
        try:
            attempt.started_call = context.client.start_call(
                endpoint,
                attempt.call(self._work, remaining=left, traceparent=traceparent),
                deadline=self._deadline,
                idle_timeout=idle_timeout,
                receive=partial(self._receive, attempt),
                on_end=partial(self._call_ended, attempt),
            )
        except Exception as error:  # noqa: BLE001 - treated as one that ends later
            self._loop.call_soon(self._call_ended, attempt, error)

    def _call_ended(self, attempt: Attempt, end: Report | BaseException) -> None:
        if attempt not in self._attempts:  # given up
            return
        try:
            if isinstance(end, Report):
                self._after_report(attempt, end)
            elif isinstance(end, CallFailed):
                self._after_failed_call(attempt, end)
            elif isinstance(end, asyncio.CancelledError):
                self._settle_failed(self._unanswered(attempt), failures.CANCELLED)
            else:
                self._after_bug(attempt.items, end)
        except Exception as bug:  # noqa: BLE001 - nobody may wait for the items without end
            self._after_bug(attempt.items, bug)
        finally:
            self._release(attempt, None if isinstance(end, Report) else end)

    def _release(self, attempt: Attempt, error: BaseException | None) -> None:
        """Note that the call of `attempt` is over."""
        self._attempts.remove(attempt)
        # The call refers to the attempt: cycles are left to the garbage collector, at its price.
        attempt.started_call = None
        if attempt.hedge_timer is not None:
            attempt.hedge_timer.cancel()
        self._context.phases.end("dispatch", attempt.began)
        self._context.endpoints.call_ended(attempt.endpoint, error)
        self._context.fleet.ended(attempt.endpoint, attempt.in_flight)
        attempt.in_flight = 0
        if attempt.span is not None:
            attempt.span.__exit__(None if error is None else type(error), error, None)
        self._leave()

    def _hedge(self, attempt: Attempt) -> None:
        endpoint = self._second_candidate(attempt)
        count = len(attempt.waiting_of(self._open))
        if endpoint is not None and self._context.hedging.spend(count):
            items = self._duplicate(attempt, endpoint)
            self._context.counters.hedged += items
            self._context.endpoints.hedged(attempt.endpoint, items)

    def _second_candidate(self, attempt: Attempt) -> Endpoint | None:
        """Return a second candidate for the open items that wait, `None` where there is none."""
        waiting = attempt.waiting_of(self._open)
        if not waiting:
            return None
        affinity = waiting[0].affinity
        # No second one that is silent as well: both may only be busy.
        return self._next(attempt, affinity, may_repeat=False, with_silent=False)

    def _duplicate(self, attempt: Attempt, endpoint: Endpoint) -> int:
        """Try the open items that wait at `endpoint` as well; return how many there are."""
        tried, items = attempt.tried, attempt.waiting_of(self._open)
        attempt.duplicate(endpoint, items)
        self._launch(Attempt(endpoint, items, tried))
        return len(items)

    def _unanswered(self, attempt: Attempt) -> list[WorkItem]:
        """Return the open items of `attempt` that no other attempt may still answer."""
        left = [*attempt.waiting.values(), *attempt.duplicated.values()]
        return [item for item in left if self._is_unanswered(item, attempt)]

    def _is_unanswered(self, item: WorkItem, attempt: Attempt) -> bool:
        if item.index not in self._open:
            return False
        return not any(other is not attempt and other.holds(item.index) for other in self._attempts)

    def _after_report(self, attempt: Attempt, report: Report) -> None:
        self._context.fleet.record(
            attempt.endpoint,
            attempt.verdict(),
            report,
            # What runs no model tells nothing of how busy it is.
            items=0 if self._work.task in TOKEN_TASKS else attempt.answered,
            rows=attempt.rows,
            took=None if self._work.is_gathered else self._loop.time() - attempt.started,
        )
        if attempt.waiting or attempt.duplicated:
            # The report ends the call: the backend sent no outcome for items that still wait.
            self._after_failure(attempt, CallFailed(Cause.CUT, "items were left unanswered"))

    def _after_failed_call(self, attempt: Attempt, error: CallFailed) -> None:
        self._context.counters.failed_calls += 1
        verdict = verdict_on(error, has_full_timeout=attempt.has_full_timeout)
        self._context.fleet.record(attempt.endpoint, verdict)
        self._after_failure(attempt, error)

    def _after_bug(self, items: Iterable[WorkItem], bug: BaseException) -> None:
        log_failure(bug)
        self._settle_failed(items, failures.UNEXPECTED)

    def _receive(self, attempt: Attempt, frames: Sequence[Done | Failed]) -> None:
        is_first_failure, answered = not attempt.failed, attempt.answered
        ended = attempt.take(frames)
        took = self._loop.time() - attempt.started
        if self._work.is_gathered:
            counted = 0 if self._work.task in TOKEN_TASKS else attempt.answered - answered
            attempt.free_places(self._context.fleet, counted, took)
        if attempt.failed and is_first_failure:
            # Failures of one event-loop iteration are retried together, before slower items end.
            self._loop.call_soon(self._retry_failed, attempt)
        if ended:
            self._latencies.note(took, len(ended))
            self._settle(ended)

    def _retry_failed(self, attempt: Attempt) -> None:
        failed, attempt.failed = attempt.failed, []
        self._retry(attempt, failed, credit=len(failed))
        self._leave()  # its call may have ended before

    def _after_failure(self, attempt: Attempt, error: CallFailed) -> None:
        """Retry the unanswered items of `attempt` at another backend, if that may help."""
        if error.cause is Cause.UNREACHABLE or is_changed(error):
            self._context.reprobe(attempt.endpoint)
        unanswered = self._unanswered(attempt)
        attempt.end()
        if not unanswered:
            return
        failure = failures.of_call(error)
        left = [(item, failure) for item in unanswered]
        is_lost = error.cause in _LOST
        if error.retryable or is_misplaced(error):
            # Free where the backend is gone, or does not serve this. Any other refusal costs 1 a
            # request: it did no work either, but the next backend may refuse as well.
            is_free = is_lost or is_misplaced(error)
            is_one = error.cause is Cause.REFUSED and not self._work.is_gathered
            credit = 1 if is_one else len(left)
            self._retry(attempt, left, credit=0 if is_free else credit, may_repeat=is_lost)
        else:
            self._settle_failed(unanswered, failure)

    def _retry(
        self,
        attempt: Attempt,
        left: list[tuple[WorkItem, ItemFailure]],
        *,
        credit: int,
        may_repeat: bool = False,
    ) -> None:
        """Try the items at the next candidate; those that may not be retried fail as given.

        `credit` is what retrying all of them takes from the retry budget.
        """
        left = [(item, failure) for item, failure in left if self._is_unanswered(item, attempt)]
        if not left or self._loop.time() >= self._deadline:
            return
        context = self._context
        context.overload.note(attempt.endpoint, self._work.model, left)
        # Overload is answered at once instead of trying a silent backend.
        with_silent = any(failure.code != Overloaded.code for _, failure in left)
        endpoint = self._next(
            attempt, left[0][0].affinity, may_repeat=may_repeat, with_silent=with_silent
        )
        granted = 0 if endpoint is None else len(left)
        if granted and credit:
            whole = self._work.atomic or credit < granted
            spent = context.budget.spend(min(credit, granted), whole=whole)
            granted = (granted if spent else 0) if whole else spent
            context.counters.denied += len(left) - granted
        self._settle([(item.index, _failed(failure)) for item, failure in left[granted:]])
        if endpoint is not None and granted:
            self._count_retried(attempt, granted)
            self._launch(Attempt(endpoint, [item for item, _ in left[:granted]], attempt.tried))

    def _count_retried(self, attempt: Attempt, items: int) -> None:
        self._context.counters.retried += items
        self._context.endpoints.retried(attempt.endpoint, items)

    def _next(
        self, attempt: Attempt, affinity: bytes, *, may_repeat: bool, with_silent: bool
    ) -> Endpoint | None:
        fleet, tried = self._context.fleet, attempt.tried
        if len(tried) >= fleet.routing.attempts:
            return None
        candidates = fleet.candidates(self._work.model, affinity, with_silent=with_silent)
        for endpoint in candidates:
            if endpoint.backend not in tried:
                return endpoint
        if not may_repeat or not candidates:
            return None
        return min(candidates, key=lambda endpoint: tried.index(endpoint.backend))

    def _settle_failed(self, items: Iterable[WorkItem], failure: ItemFailure) -> None:
        outcome = _failed(failure)
        self._settle([(item.index, outcome) for item in items])

    def _settle(self, outcomes: Outcomes) -> None:
        """Settle those of the items that are open; none is named twice."""
        still_open, counters = self._open, self._context.counters
        new: list[tuple[int, ItemOutcome]] = []
        failed = 0
        for index, outcome in outcomes:
            if index in still_open:
                still_open.remove(index)
                new.append((index, outcome))
                if outcome.failure is not None:
                    failed += 1
                    counters.count_failure(outcome.failure.code)
        if not new:
            return
        counters.computed += len(new) - failed
        if failed and self._attempts:
            explain = self._context.overload.explain
            new = [*explain(new, self._work, self._attempts, self._deadline)]
        self._on_settled(new)


def _failed(failure: ItemFailure) -> ItemOutcome:
    return ItemOutcome(source=Source.FAILED, failure=failure)
