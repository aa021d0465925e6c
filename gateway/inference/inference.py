"""Answers the items of a request from the cache, from work in flight, or by new work.

`Inference.prepare` plans a request, and `from_memory` answers it without waiting. `lookup_nowait`
reads the cache, and `compute` answers the rest; both report by callback. A computation goes on when
its first caller leaves, so requests that joined it do not depend on that caller.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from sluicegate.gateway.cache.entry import CachedResult, CacheHit
from sluicegate.gateway.cache.key import CacheKey, KeyMaker, address_of
from sluicegate.gateway.dispatch.work import ItemOwner, OpenItem, WorkRunner, settle
from sluicegate.gateway.errors import NotCached
from sluicegate.gateway.inference.coalescing import Flights, ItemWaits
from sluicegate.gateway.inference.interfaces import LookupCallback, ModelTable, ResultStore
from sluicegate.gateway.inference.last_answers import (
    LastAnswers,
    StaleAnswersByIndex,
    at_answering_revision,
)
from sluicegate.gateway.inference.outcomes import LOST, SpanOfItems
from sluicegate.gateway.inference.prepared_request import PreparedRequest, RequestPlan, RequestPlans
from sluicegate.gateway.tasks import log_failure
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import (
    Answer,
    CacheDirectives,
    Caller,
    ItemOutcome,
    ServedModel,
)

OnAnswer = Callable[[Answer | Exception], object]


class Inference:
    """Answers requests. Shared by all entry points of a worker.

    Items in the lane `bulk` are claimed for no other worker: others compute what they need
    themselves, rather than wait for bulk work.
    """

    def __init__(
        self,
        *,
        models: ModelTable,
        keys: KeyMaker,
        cache: ResultStore,
        last_answers: LastAnswers,
        flights: Flights,
        owner: ItemOwner,
        runner: WorkRunner,
        tracer: Tracer,
        lane: Literal["interactive", "bulk"] = "interactive",
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        plans = RequestPlans(models=models, keys=keys)
        self.prepare, self.is_current = plans.prepare, plans.is_current
        self.served, self.models_version = models.model, models.models_version
        self._cache, self.peek, self.entry_of = cache, cache.peek, cache.entry_of
        self._last_answers = last_answers
        self._flights = flights
        self._owner = owner
        self._runner = runner
        self._tracer = tracer
        self._lane: Literal["interactive", "bulk"] = lane
        self._claims = lane != "bulk"
        self.wall = wall

    def read_hit(
        self, plan: RequestPlan, key: CacheKey, now: float, directives: CacheDirectives
    ) -> CachedResult | None:
        """Return the entry that memory has for `key` if it answers a caller with `directives`."""
        if directives.no_cache or plan.entry.cache_ttl <= 0:
            return None
        entry = self._cache.peek(key, now)
        if entry is None or not plan.is_valid(entry, now, directives.max_age):
            return None
        return entry

    def from_memory(self, prepared: PreparedRequest, directives: CacheDirectives) -> Answer | None:
        """Return the answer if this worker's memory has all of it."""
        has = self._cache.has
        for address, _ in prepared.keys:
            if not has(address):
                return None  # those that it has are looked up with the others
        now = self.wall()
        outcomes = []
        for key in prepared.keys:
            entry = self.read_hit(prepared.plan, key, now, directives)
            if entry is None:
                return None
            outcomes.append(prepared.outcome(entry, "memory", now))
        return Answer(model=prepared.plan.model, outcomes=outcomes)

    def lookup_nowait(
        self, prepared: PreparedRequest, on_done: LookupCallback, directives: CacheDirectives
    ) -> None:
        """Call `on_done` with the cached answers to the items, in a later event-loop iteration.

        Call this only if the caller may read the cache; see `PreparedRequest.may_read`.
        """
        plan = prepared.plan
        self._cache.lookup_nowait(
            prepared.keys,
            on_done,
            # Without a call for most requests, which name no age.
            plan.is_valid if directives.max_age is None else plan.validity(directives),
            claims=self._claims and prepared.is_shared(directives),
        )

    def hits(
        self, prepared: PreparedRequest, found: Sequence[CacheHit | None]
    ) -> list[ItemOutcome | None]:
        """Return what a look-up found as outcomes."""
        now = self.wall()
        return [
            None if hit is None else prepared.outcome(hit.entry, hit.tier, now) for hit in found
        ]

    def compute(
        self,
        prepared: PreparedRequest,
        caller: Caller,
        outcomes: list[ItemOutcome | None],
        on_done: OnAnswer,
    ) -> ItemWaits:
        """Answer each item that has no outcome in `outcomes`, by the caller's deadline.

        Call `on_done` once, possibly before this returns. It gets `NotCached` if the caller wanted
        only cached answers and one is missing. Cancel what is returned, and there is no call.
        """
        missing = _missing(outcomes) if any(outcomes) else range(len(outcomes))
        waits = ItemWaits(caller, not prepared.request.continue_on_error, outcomes)
        if prepared.plan.unrevised is not None:
            found = partial(self._stale_found, waits, prepared, missing, on_done)
            try:
                self._last_answers.find(prepared, missing, caller.directives, found)
            except Exception:  # nobody else ends the claims on what is missing
                self._give_back(prepared, set(missing))
                raise
        elif caller.directives.only_if_cached:
            on_done(_not_cached())
        else:
            self._compute(waits, prepared, missing, on_done)
        return waits

    def _stale_found(
        self,
        waits: ItemWaits,
        prepared: PreparedRequest,
        missing: Sequence[int],
        on_done: OnAnswer,
        stale: StaleAnswersByIndex,
    ) -> None:
        """Fill in the stale answers that may be given at once; compute what is still missing."""
        if waits.is_cancelled:
            self._give_back(prepared, set(missing))
            return
        directives, outcomes = waits.caller.directives, waits.outcomes
        if stale:
            on_done = partial(self._ended_beside_stale, waits, prepared, stale, on_done)
            waits.is_whole = False
        answer: Answer | Exception
        try:
            self._last_answers.serve(prepared, stale, directives, outcomes)
            if stale:  # those that are refreshed were taken
                self._give_back(prepared, {index for index in stale if outcomes[index]})
            missing = _missing(outcomes)
            if missing and not directives.only_if_cached:
                self._compute(waits, prepared, missing, on_done)
                return
            answer = _answer(prepared, outcomes, prepared.plan.model)
            if missing:
                answer = _not_cached()
        except Exception as bug:  # noqa: BLE001 - somebody waits for the answer
            self._give_back(prepared, set(missing))
            answer = bug
        on_done(answer)

    def _ended_beside_stale(
        self,
        waits: ItemWaits,
        prepared: PreparedRequest,
        stale: StaleAnswersByIndex,
        on_done: OnAnswer,
        answer: Answer | Exception,
    ) -> None:
        """Give stale answers in place of items that no backend answered."""
        directives, outcomes = waits.caller.directives, waits.outcomes
        try:
            if isinstance(answer, Answer):
                self._last_answers.serve_on_error(prepared, stale, directives, outcomes)
                model = at_answering_revision(prepared.plan.model, outcomes)
                answer = _answer(prepared, outcomes, model)
        except Exception as bug:  # noqa: BLE001 - somebody waits for the answer
            answer = bug
        on_done(answer)

    def _compute(
        self,
        waits: ItemWaits,
        prepared: PreparedRequest,
        missing: Sequence[int],
        on_done: OnAnswer,
    ) -> None:
        """Join the missing items that are in flight, have the others computed, and wait for all."""
        if waits.caller.traceparent:
            waits.span = self._tracer.span("coalescing", parent=waits.caller.traceparent)
        # Whatever goes wrong, nobody may wait for the items without end.
        try:
            led = self._join_or_lead(waits, prepared, missing)
        except Exception:  # as above
            settle([(item, LOST) for item in waits.led])
            self._give_back(prepared, set(missing))
            raise
        try:
            if led:
                self._runner.start(led)
        except Exception as bug:  # noqa: BLE001 - as above
            log_failure(bug)
            settle([(item, LOST) for item in led])
        if len(led) < len(missing):  # after those to compute have taken their claims
            self._give_back(prepared, set(missing).difference([item.index for item in led]))
        waits.begin(partial(self._ended, waits, prepared, on_done))

    def _ended(
        self,
        waits: ItemWaits,
        prepared: PreparedRequest,
        on_done: OnAnswer,
        has_failed: bool,  # noqa: FBT001
        again: Sequence[int],
    ) -> None:
        """Answer the request, or try again the items that failed only for those who led them."""
        if has_failed:
            self._runner.cancel(waits.unwanted())
        if again:
            waits.forget()
            self._compute(waits, prepared, again, on_done)
        else:
            on_done(_answer(prepared, waits.outcomes, prepared.plan.model))

    def _join_or_lead(
        self, waits: ItemWaits, prepared: PreparedRequest, missing: Sequence[int]
    ) -> Sequence[OpenItem]:
        """Join the items in flight, and lead the others. Return the items to compute."""
        caller, request, keys = waits.caller, prepared.request, prepared.keys
        work = prepared.work(
            self._owner,
            deadline=caller.deadline,
            is_shared=self._claims and prepared.is_shared(caller.directives),
            is_stored=not caller.directives.no_store,
            principal=caller.principal,
            criticality=caller.criticality,
            lane=self._lane,
            atomic=not request.continue_on_error,
            traceparent=caller.traceparent,
        )
        items = [OpenItem(work, index, request.items[index], keys[index]) for index in missing]
        # Nobody computes the items of most requests yet: a few steps then lead all of them.
        has_some = len(items) < len(keys) or any(map(self._cache.has, map(address_of, keys)))
        if not has_some and self._flights.lead(items):
            waits.led = items
        else:
            items = self._join_or_lead_each(waits, prepared, items)
        if caller.traceparent and items:
            span = self._tracer.span("dispatch", parent=caller.traceparent)
            work.traceparent = span.traceparent
            if span.is_recorded:
                waiter = SpanOfItems(span, len(items))
                for item in items:
                    item.waiters.append(waiter)
        return items

    def _join_or_lead_each(
        self, waits: ItemWaits, prepared: PreparedRequest, items: Sequence[OpenItem]
    ) -> list[OpenItem]:
        flights, now, has = self._flights, self.wall(), self._cache.has
        led: list[OpenItem] = []
        waits.led = led
        to_compute: list[OpenItem] = []
        for item in items:
            other = flights.join(item.key, truncate=prepared.request.truncate)
            if other is not None:
                waits.joined[item.index] = other
                continue
            flights.lead([item])
            led.append(item)
            # Another request may have settled it during the look-up in Redis.
            entry = None
            if has(item.key[0]):
                entry = self.read_hit(prepared.plan, item.key, now, waits.caller.directives)
            if entry is None:
                to_compute.append(item)
            else:
                settle([(item, prepared.outcome(entry, "memory", now))])
        return to_compute

    def _give_back(self, prepared: PreparedRequest, indexes: set[int]) -> None:
        """End the look-up's claims on items that other requests compute or have computed."""
        if indexes:
            self._cache.release_unused([prepared.keys[index] for index in indexes])

    def abandon(self, prepared: PreparedRequest) -> None:
        """End the look-up's claims for a request that was given up."""
        self._cache.release_unused(prepared.keys)


def _answer(
    prepared: PreparedRequest, outcomes: Sequence[ItemOutcome | None], model: ServedModel
) -> Answer:
    return Answer(
        model=model,
        outcomes=list(filter(None, outcomes)),
        is_cacheable=prepared.plan.entry.cache_ttl > 0,
    )


def _not_cached() -> NotCached:
    return NotCached("Not every item is in the cache; drop `only-if-cached` to compute it.")


def _missing(outcomes: Sequence[ItemOutcome | None]) -> list[int]:
    return [index for index, outcome in enumerate(outcomes) if outcome is None]
