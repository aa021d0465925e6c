"""Stores answers, and serves stale ones: of an earlier revision, or past their lifetime (RFC 5861).

A model that opted in (`stale_while_revalidate`, `stale_if_error`) has each answer kept twice: under
its key, and under one without a revision, where the last answer lies whoever gave it. The second
outlives the first, and is looked for only where the first is not found. So nobody need know which
revision was before, a worker that has just begun included.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey
from gateway.config.document import ModelConfig
from gateway.dispatch.work import Outcomes, WorkRunner
from gateway.inference.coalescing import Flights
from gateway.inference.interfaces import ResultStore
from gateway.inference.outcomes import REFUSED, hit_outcome, would_repeat
from gateway.inference.prepared_request import PreparedRequest
from gateway.inference.refreshing import Refresher
from gateway.types import CacheDirectives, ItemOutcome, ServedModel, Source, Stale

# With these a region, or all of them, did not answer; 500 is a fault that must not stay hidden.
_UNANSWERED = frozenset({502, 503, 504})
_MOST_JITTER = 0.5
# A member of an enumeration is looked up by a method in Python 3.11.
_COMPUTED = Source.COMPUTED


class StaleStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Items answered with stale answers since the start, and the refreshes that followed."""

    served: int
    """While a refresh was due."""
    served_on_error: int
    """Because no backend answered."""
    refreshing: int
    refreshes: int
    refreshes_skipped: int
    """Items not refreshed because as many as allowed were."""


class _StaleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A stored answer that is stale, for `staleness` seconds."""

    outcome: ItemOutcome
    staleness: float


StaleAnswersByIndex = dict[int, _StaleAnswer]
"""By the item's index."""


class LastAnswers:
    """Stores answers and last answers, and finds stale ones for items that the cache does not have.

    An answer of another revision is stale since this worker first missed an answer of the
    present one, or since its own time was over, whichever was earlier.
    """

    def __init__(
        self,
        *,
        cache: ResultStore,
        flights: Flights,
        runner: WorkRunner,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._cache = cache
        self._wall = wall
        self._refresher = Refresher(runner=runner, keep=self.keep, is_computed=flights.__contains__)
        self._revisions: dict[str, tuple[str, float]] = {}
        self._served = self._served_on_error = 0

    def keep(self, prepared: PreparedRequest, outcomes: Outcomes) -> None:
        """Store answers, and for a short while refusals that would only be repeated."""
        plan, keys = prepared.plan, prepared.keys
        ttl = plan.entry.cache_ttl
        if ttl <= 0:
            return
        now = self._wall()
        owner, epoch = plan.owner, plan.runtime.epochs.get(plan.owner, 0)
        kept: list[tuple[CacheKey, CachedResult]] = []
        unrevised = plan.unrevised
        for index, outcome in outcomes:
            if (failure := outcome.failure) is None:
                if outcome.source is not _COMPUTED:
                    # What another worker computed is stored by it.
                    continue
                entry = CachedResult(
                    payload=outcome.result,
                    rows=outcome.rows,
                    tokens=outcome.tokens,
                    stored_at=now,
                    expires_at=now + ttl,
                    owner=owner,
                    owner_epoch=epoch,
                    truncated_from=outcome.truncated_from,
                    arm=outcome.arm,
                    input_tokens=outcome.input_tokens,
                )
            elif would_repeat(failure) and prepared.request.truncate and not outcome.tier:
                entry = CachedResult(
                    payload=b"",
                    status=failure.status,
                    code=failure.code,
                    detail=failure.detail,
                    rows=outcome.rows,
                    tokens=outcome.tokens,
                    stored_at=now,
                    expires_at=now + plan.runtime.document.cache.refusal_ttl,
                    owner=owner,
                    owner_epoch=epoch,
                    arm=outcome.arm,
                )
            else:
                # Others may be answered by a part of the text.
                continue
            kept.append((keys[index], entry))
            if unrevised is not None:
                (key,) = unrevised.keys([prepared.request.items[index]])
                kept.append((key, _last(prepared, entry)))
        self._cache.store_all(kept)

    async def find(
        self, prepared: PreparedRequest, missing: Sequence[int], directives: CacheDirectives
    ) -> StaleAnswersByIndex:
        """Return the stale answers to `missing` that are not too old for the caller."""
        unrevised = prepared.plan.unrevised
        if unrevised is None or not _accepts_stale(prepared, directives):
            return {}
        items = prepared.request.items
        is_usable = partial(_may_stand_in, prepared, max_age=directives.max_age)
        keys = unrevised.keys([items[index] for index in missing])
        found = await self._cache.lookup(keys, is_usable)
        now = self._wall()
        missed_since = self._revision_since(prepared.plan.model, now)
        stale: StaleAnswersByIndex = {}
        for index, hit in zip(missing, found, strict=True):
            if hit is None or not is_usable(hit.entry, now):
                continue
            entry = hit.entry
            since = entry.stored_at + prepared.plan.entry.cache_ttl
            if entry.revision != prepared.plan.model.info.revision:
                since = min(since, missed_since)
            outcome = hit_outcome(entry, hit.tier, now)
            outcome = replace(outcome, revision=entry.revision)
            stale[index] = _StaleAnswer(outcome=outcome, staleness=now - since)
        return stale

    def serve(
        self,
        prepared: PreparedRequest,
        stale: StaleAnswersByIndex,
        directives: CacheDirectives,
        outcomes: list[ItemOutcome | None],
    ) -> None:
        """Fill in `outcomes` what a stale answer may be given for, and start to refresh it."""
        bound = prepared.plan.entry.stale_while_revalidate
        if directives.max_stale is not None:
            bound = min(max(bound, prepared.plan.entry.stale_if_error), directives.max_stale)
        served = [index for index, one in stale.items() if one.staleness < bound]
        for index in served:
            outcomes[index] = replace(stale[index].outcome, stale=Stale.REVALIDATING)
        self._served += len(served)
        if served and not directives.no_store:
            self._refresher.refresh(prepared, served)

    def serve_on_error(
        self,
        prepared: PreparedRequest,
        stale: StaleAnswersByIndex,
        directives: CacheDirectives,
        outcomes: list[ItemOutcome | None],
    ) -> None:
        """Replace in `outcomes` failures to reach a backend by stale answers."""
        bound = prepared.plan.entry.stale_if_error
        if directives.max_stale is not None:
            bound = min(bound, directives.max_stale)
        for index, one in stale.items():
            outcome = outcomes[index]
            failure = outcome.failure if outcome is not None else None
            if failure is None or failure.status not in _UNANSWERED or one.staleness >= bound:
                continue
            outcomes[index] = replace(one.outcome, stale=Stale.ON_ERROR)
            self._served_on_error += 1

    def statistics(self) -> StaleStatistics:
        """Return counts for metrics and tests."""
        return StaleStatistics(
            served=self._served,
            served_on_error=self._served_on_error,
            refreshing=len(self._refresher),
            refreshes=self._refresher.begun,
            refreshes_skipped=self._refresher.skipped,
        )

    def _revision_since(self, model: ServedModel, now: float) -> float:
        info = model.info
        revision, since = self._revisions.get(info.name, ("", now))
        if revision != info.revision:
            since = now
            self._revisions[info.name] = (info.revision, since)
        return since


def keeps_last(entry: ModelConfig) -> bool:
    """Tell whether the last answers of a model are kept beyond their time."""
    return entry.cache_ttl > 0 and max(entry.stale_while_revalidate, entry.stale_if_error) > 0


def at_answering_revision(
    model: ServedModel, outcomes: Sequence[ItemOutcome | None]
) -> ServedModel:
    """Return `model` at the revision that gave every one of `outcomes`, else as it is."""
    revisions = {outcome.revision for outcome in outcomes if outcome is not None}
    if len(revisions) != 1 or "" in revisions:
        return model
    return replace(model, info=replace(model.info, revision=revisions.pop()))


def _accepts_stale(prepared: PreparedRequest, directives: CacheDirectives) -> bool:
    """Tell whether the caller takes stale answers; RFC 9111: not with `max-age` alone."""
    if directives.max_stale is not None:
        return prepared.may_read(directives) and directives.max_stale > 0
    return prepared.may_read(directives) and directives.max_age is None


def _may_stand_in(
    prepared: PreparedRequest, entry: CachedResult, now: float, max_age: float | None
) -> bool:
    """Tell whether an answer may be given however stale it is; its lifetime is not looked at."""
    return (
        entry.revision != ""
        and prepared.plan.is_kept(entry)
        and (prepared.request.truncate or not entry.truncated_from)
        and (max_age is None or now - entry.stored_at <= max_age)
    )


def _last(prepared: PreparedRequest, entry: CachedResult) -> CachedResult:
    """Return `entry` as it is kept for later; a refusal takes the place of the answer before."""
    if entry.status == REFUSED:
        return entry
    bound = max(prepared.plan.entry.stale_while_revalidate, prepared.plan.entry.stale_if_error)
    # Redis shortens lives by up to the jitter, which must not eat up the bound.
    kept = 1 - min(prepared.plan.runtime.document.cache.ttl_jitter, _MOST_JITTER)
    return replace(
        entry,
        revision=prepared.plan.model.info.revision,
        expires_at=entry.stored_at + math.ceil((prepared.plan.entry.cache_ttl + bound) / kept),
    )
