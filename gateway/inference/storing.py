"""Stores the answers of settled items, and ends what this worker holds for them."""

import math
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.work import ItemOwner, OpenItem
from sluicegate.gateway.inference.interfaces import ResultStore
from sluicegate.gateway.inference.outcomes import REFUSED, would_repeat
from sluicegate.gateway.inference.prepared_request import PlannedWork, RequestPlan
from sluicegate.gateway.tasks import log_failure
from sluicegate.gateway.types import ItemOutcome, Source

_MOST_JITTER = 0.5
# A member of an enumeration is looked up by a method in Python 3.11.
_COMPUTED = Source.COMPUTED


class AnswerStore:
    """Implements `ItemOwner`: stores answers, and for a short while refusals that would repeat.

    A model that opted in has each answer stored twice, the second time for `LastAnswers`. `claims`
    and `flights` hear of the items, too: nobody waits for them in vain.
    """

    def __init__(
        self,
        *,
        cache: ResultStore,
        claims: ItemOwner,
        flights: ItemOwner,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._cache = cache
        self._claims = claims
        self._flights = flights
        self._wall = wall

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemOwner`."""
        try:
            self._claims.items_ended(items)
        finally:
            try:
                self._store(items)
            finally:
                self._flights.items_ended(items)

    def _store(self, items: Sequence[OpenItem]) -> None:
        now = self._wall()
        kept: list[tuple[CacheKey, CachedResult]] = []
        for item in items:
            work = item.work
            if not isinstance(work, PlannedWork) or not work.is_stored:
                continue
            try:
                entry, last = _entry(work, item.outcome, now), work.plan.unrevised
                if entry is not None:
                    kept.append((item.key, entry))
                if entry is not None and last is not None:
                    kept += [(key, _last(work.plan, entry)) for key in last.keys([item.body])]
            except Exception as bug:  # noqa: BLE001 - the items may be of many requests
                log_failure(bug)
        if kept:
            self._cache.store_all(kept)


def _entry(work: PlannedWork, outcome: ItemOutcome | None, now: float) -> CachedResult | None:
    """Return what is stored of an outcome."""
    plan = work.plan
    ttl = plan.entry.cache_ttl
    if outcome is None or ttl <= 0:
        return None
    if (failure := outcome.failure) is None:
        # Another worker stores it, or another try may have a whole result.
        if outcome.source is not _COMPUTED or outcome.is_partial:
            return None
        return CachedResult(
            payload=outcome.result,
            rows=outcome.rows,
            tokens=outcome.tokens,
            stored_at=now,
            expires_at=now + ttl,
            owner=plan.owner,
            owner_epoch=plan.runtime.epochs.get(plan.owner, 0),
            truncated_from=outcome.truncated_from,
            arm=outcome.arm,
            input_tokens=outcome.input_tokens,
        )
    # No refusal of `truncate: false`: others may accept an answer to a part of the text.
    if not would_repeat(failure) or not work.truncate or outcome.tier:
        return None
    return CachedResult(
        payload=b"",
        status=failure.status,
        code=failure.code,
        detail=failure.detail,
        rows=outcome.rows,
        tokens=outcome.tokens,
        stored_at=now,
        expires_at=now + plan.runtime.document.cache.refusal_ttl,
        owner=plan.owner,
        owner_epoch=plan.runtime.epochs.get(plan.owner, 0),
        arm=outcome.arm,
    )


def _last(plan: RequestPlan, entry: CachedResult) -> CachedResult:
    """Return `entry` as it is kept for later; a refusal takes the place of the answer before."""
    if entry.status == REFUSED:
        return entry
    bound = max(plan.entry.stale_while_revalidate, plan.entry.stale_if_error)
    # Redis shortens lives by up to the jitter, which must not eat up the bound.
    kept = 1 - min(plan.runtime.document.cache.ttl_jitter, _MOST_JITTER)
    return replace(
        entry,
        revision=plan.model.info.revision,
        expires_at=entry.stored_at + math.ceil((plan.entry.cache_ttl + bound) / kept),
    )
