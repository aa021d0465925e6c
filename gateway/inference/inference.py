"""Answers the items of a request from the cache, from work in flight, or by new work.

`Inference.prepare` plans a request, and `from_memory` answers it without waiting. `lookup_nowait`
reads the cache and `compute_nowait` computes the rest; both report by callback. `infer` is a
coroutine that does both. A computation goes on when its first caller leaves, so requests that
joined it do not depend on that caller.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from gateway.cache.entry import CachedResult, CacheHit
from gateway.cache.key import CacheKey, KeyMaker, address_of
from gateway.dispatch.work import Outcomes, StartedWork, WorkRunner
from gateway.errors import NotCached
from gateway.inference.coalescing import Flights
from gateway.inference.gathering import MissGatherer
from gateway.inference.interfaces import LookupCallback, ModelTable, ResultStore
from gateway.inference.item_waits import ItemWaits
from gateway.inference.last_answers import (
    LastAnswers,
    StaleAnswersByIndex,
    at_answering_revision,
)
from gateway.inference.outcomes import (
    LOST,
    describe_lookup,
    ending,
)
from gateway.inference.planning import RequestPlans
from gateway.inference.prepared_request import PreparedRequest, RequestPlan
from gateway.tasks import CallbackBatch, log_failure
from gateway.telemetry.spans import NO_SPAN
from gateway.telemetry.tracing import Tracer
from gateway.types import (
    Answer,
    CacheDirectives,
    Caller,
    ItemOutcome,
    ServedModel,
)


class Inference:
    """Answers requests. Shared by all entry points of a worker."""

    def __init__(
        self,
        *,
        models: ModelTable,
        keys: KeyMaker,
        cache: ResultStore,
        last_answers: LastAnswers,
        flights: Flights,
        runner: WorkRunner,
        tracer: Tracer,
        batch: CallbackBatch | None = None,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        plans = RequestPlans(models=models, keys=keys)
        self.prepare, self.is_current = plans.prepare, plans.is_current
        self.served = models.model
        self._cache, self.peek, self.entry_of = cache, cache.peek, cache.entry_of
        self._last_answers = last_answers
        self._flights = flights
        self._runner = runner
        self._tracer = tracer
        self.wall = wall
        self._batch = batch or CallbackBatch()
        self._gatherer = MissGatherer(
            compute=self._compute,
            flights=flights,
            records=tracer.records,
            batch=self._batch,
        )

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
            claims=prepared.is_shared(directives),
        )

    def hits(
        self,
        prepared: PreparedRequest,
        found: Sequence[CacheHit | None],
        directives: CacheDirectives,
    ) -> list[ItemOutcome | None]:
        """Return the found answers as outcomes, except answers that are too old for the caller."""
        if not any(found):
            return [None] * len(found)
        now, is_valid, max_age = self.wall(), prepared.plan.is_valid, directives.max_age
        return [
            prepared.outcome(hit.entry, hit.tier, now)
            if hit is not None and is_valid(hit.entry, now, max_age)
            else None
            for hit in found
        ]

    async def infer(
        self,
        prepared: PreparedRequest,
        caller: Caller,
        outcomes: list[ItemOutcome | None] | None = None,
    ) -> Answer:
        """Answer every item with a result or a failure of its own, by the caller's deadline.

        `outcomes`, from `hits`, replace the look-up in the cache.

        Raises:
            NotCached: the caller wanted cached answers only and one is missing.
        """
        if outcomes is None:
            outcomes = await self._look_up(prepared, caller)
        plan, missing = prepared.plan, _missing(outcomes)
        stale: StaleAnswersByIndex = {}
        if missing and plan.unrevised is not None:
            stale = await self._find_stale(prepared, missing, caller.directives)
            self._last_answers.serve(prepared, stale, caller.directives, outcomes)
            missing = _missing(outcomes)
            if stale:  # those that are refreshed were taken
                self._give_back(prepared, {index for index in stale if outcomes[index]})
        if missing and caller.directives.only_if_cached:
            raise NotCached("Not every item is in the cache; drop `only-if-cached` to compute it.")
        is_whole = not (prepared.request.continue_on_error or stale)
        while missing:
            waiting = self._join_or_lead(prepared, caller, missing, is_whole=is_whole)
            ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            with self._tracer.span("coalescing", parent=caller.traceparent) as span:
                waiting.on_end(partial(_resolve, ended))
                try:
                    has_failed = await ended
                finally:
                    waiting.cancel()
                waiting.describe(span)
            missing = waiting.fill(outcomes, has_failed=has_failed)
        if stale:
            self._last_answers.serve_on_error(prepared, stale, caller.directives, outcomes)
        model = at_answering_revision(plan.model, outcomes) if stale else plan.model
        return _answer(prepared, outcomes, model)

    def compute_nowait(
        self,
        prepared: PreparedRequest,
        caller: Caller,
        outcomes: list[ItemOutcome | None],
        on_done: Callable[[Answer], object],
    ) -> bool:
        """Call `on_done` with the result of `infer`, possibly before this returns.

        Return `False` if only `infer` can answer, because not only backends may have the answer.
        """
        plan = prepared.plan
        if plan.unrevised is not None or caller.directives.only_if_cached:
            return False
        missing = _missing(outcomes) if any(outcomes) else range(len(outcomes))
        is_whole = not prepared.request.continue_on_error
        waiting = self._join_or_lead(prepared, caller, missing, is_whole=is_whole)
        parent = caller.traceparent
        span = self._tracer.span("coalescing", parent=parent) if parent else NO_SPAN

        # It refers to what refers to it, until it is called: cycles cost more than the call.
        def ended(has_failed: bool) -> None:  # noqa: FBT001
            if span.is_recorded:
                waiting.describe(span)
                span.end()
            if waiting.fill(outcomes, has_failed=has_failed):
                self.compute_nowait(prepared, caller, outcomes, on_done)
            else:
                on_done(_answer(prepared, outcomes, plan.model))

        waiting.on_end(ended)
        return True

    async def _look_up(self, prepared: PreparedRequest, caller: Caller) -> list[ItemOutcome | None]:
        directives = caller.directives
        if not prepared.may_read(directives):
            return [None] * len(prepared.keys)
        with self._tracer.span("cache lookup", parent=caller.traceparent) as span:
            found = await self._cache.lookup(
                prepared.keys,
                prepared.plan.validity(directives),
                claims=prepared.is_shared(directives),
            )
            describe_lookup(span, found)
        return self.hits(prepared, found, directives)

    async def _find_stale(
        self, prepared: PreparedRequest, missing: Sequence[int], directives: CacheDirectives
    ) -> StaleAnswersByIndex:
        try:
            return await self._last_answers.find(prepared, missing, directives)
        except BaseException:  # nobody else ends the claims on what is missing
            self._give_back(prepared, set(missing))
            raise

    def _join_or_lead(
        self,
        prepared: PreparedRequest,
        caller: Caller,
        missing: Sequence[int],
        *,
        is_whole: bool,
    ) -> ItemWaits:
        waits = ItemWaits(caller, is_whole)
        led = self._lead_all(prepared, caller, missing, waits)
        try:
            if led is None:
                led = self._lead_each(prepared, caller, missing, waits)
                self._give_back(prepared, set(missing).difference(led))
            if led and not self._gatherer.add(prepared, caller):
                waits.work = self._compute(prepared, caller, led)
        except Exception:  # nobody may wait for the items without end
            keys = prepared.flight_keys
            for index in waits.led:
                self._flights.settle(keys[index], LOST)
            raise
        return waits

    def _lead_all(
        self, prepared: PreparedRequest, caller: Caller, missing: Sequence[int], waits: ItemWaits
    ) -> Sequence[int] | None:
        """Lead all items of a request, or return `None` if some are found or in flight by now."""
        keys = prepared.keys
        if len(missing) < len(keys) or any(map(self._cache.has, map(address_of, keys))):
            return None
        if not prepared.request.truncate:
            keys = prepared.flight_keys
        flights = self._flights.lead_all(keys, caller.criticality)
        if flights is None:
            return None
        waits.led = dict(zip(missing, flights, strict=True))
        return missing

    def _lead_each(
        self, prepared: PreparedRequest, caller: Caller, missing: Sequence[int], waits: ItemWaits
    ) -> Sequence[int]:
        """Join the items in flight, lead the others, and return the items to compute."""
        keys, flights, now = prepared.flight_keys, self._flights, self.wall()
        has = self._cache.has
        led: list[int] = []
        for index in missing:
            key = keys[index]
            flight = flights.join(key)
            if flight is not None:
                waits.joined[index] = flight
                continue
            waits.led[index] = flights.lead(key, caller.criticality)
            # Its flight may have ended during the look-up in Redis.
            entry = None
            if has(key[0]):
                entry = self.read_hit(prepared.plan, prepared.keys[index], now, caller.directives)
            if entry is None:
                led.append(index)
            else:
                flights.settle(key, prepared.outcome(entry, "memory", now))
        return led

    def _give_back(self, prepared: PreparedRequest, indexes: set[int]) -> None:
        """End the look-up's claims on items that other requests compute or have computed."""
        if indexes:
            keys = [prepared.keys[index] for index in indexes]
            # Later: they may not have taken their claims yet.
            self._batch.defer(partial(self._cache.release_unused, keys))

    def _compute(
        self,
        prepared: PreparedRequest,
        caller: Caller,
        led: Sequence[int],
        contexts: Sequence[str] | None = None,
    ) -> StartedWork | None:
        """Start the work on items. With `contexts`, each item belongs to another request."""
        work = prepared.work(
            led,
            is_shared=prepared.is_shared(caller.directives),
            principal=caller.principal,
            criticality=caller.criticality,
            atomic=contexts is None and not prepared.request.continue_on_error,
            contexts=contexts,
        )
        keys, settle_flights = prepared.flight_keys, self._flights.settle_all
        keep = None if caller.directives.no_store else self._last_answers.keep

        def settle(outcomes: Outcomes) -> None:
            try:
                if keep is not None:
                    keep(prepared, outcomes)
            finally:
                settle_flights(keys, outcomes)

        span = self._tracer.span("dispatch", parent=caller.traceparent)
        try:
            return self._runner.start(
                work,
                deadline=caller.deadline,
                settle=ending(span, settle, len(led)) if span.is_recorded else settle,
                traceparent=span.traceparent,
            )
        except Exception as bug:  # noqa: BLE001 - nobody may wait for the items without end
            log_failure(bug)
            settle_flights(keys, [(index, LOST) for index in led])
            return None


def _answer(
    prepared: PreparedRequest, outcomes: Sequence[ItemOutcome | None], model: ServedModel
) -> Answer:
    return Answer(
        model=model,
        outcomes=list(filter(None, outcomes)),
        is_cacheable=prepared.plan.entry.cache_ttl > 0,
    )


def _resolve(ended: asyncio.Future[bool], has_failed: bool) -> None:  # noqa: FBT001
    if not ended.done():  # the caller was not cancelled
        ended.set_result(has_failed)


def _missing(outcomes: Sequence[ItemOutcome | None]) -> list[int]:
    return [index for index, outcome in enumerate(outcomes) if outcome is None]
