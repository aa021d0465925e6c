"""Serves and refreshes stale answers: of an earlier revision, or past their lifetime (RFC 5861).

A model that opted in (`stale_while_revalidate`, `stale_if_error`) has each answer kept twice: under
its key, and under one without a revision, where the last answer lies whoever gave it. The second
outlives the first, and is looked for only where the first is not found. So nobody need know which
revision was before, a worker that has just begun included.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from sluicegate.gateway.cache.entry import CachedResult, CacheHit
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.work import ItemOwner, OpenItem, WorkRunner
from sluicegate.gateway.inference.interfaces import ResultStore
from sluicegate.gateway.inference.outcomes import hit_outcome
from sluicegate.gateway.inference.prepared_request import PreparedRequest
from sluicegate.gateway.tasks import log_failure
from sluicegate.gateway.types import CacheDirectives, Criticality, ItemOutcome, ServedModel, Stale
from sluicegate.wire.metric_declaration import counter, gauge

# With these a region, or all of them, did not answer; 500 is a fault that must not stay hidden.
_UNANSWERED = frozenset({502, 503, 504})


_ITEMS: Final = counter(
    "sluicegate_stale_items_total",
    "Items answered with a stale result. `reason`: `refresh_due`, `error` (no backend).",
    "reason",
)
_REFRESHES: Final = counter(
    "sluicegate_stale_refreshes_total",
    "Stale items due for a refresh. `result`: `started`, `skipped` (too many refreshes were under "
    "way).",
    "result",
)
_REFRESHING: Final = gauge("sluicegate_stale_refreshes_in_flight", "Refreshes under way.")


class StaleStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Items answered with stale answers since the start, and the refreshes that followed."""

    served: Annotated[int, _ITEMS("refresh_due")]
    served_on_error: Annotated[int, _ITEMS("error")]
    refreshing: Annotated[int, _REFRESHING]
    refreshes: Annotated[int, _REFRESHES("started")]
    refreshes_skipped: Annotated[int, _REFRESHES("skipped")]


class _StaleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A stored answer that is stale, for `staleness` seconds."""

    outcome: ItemOutcome
    staleness: float


StaleAnswersByIndex = dict[int, _StaleAnswer]
"""By the item's index."""


class Refresher:
    """Refreshes stale answers in the background: each item once, few at a time, at nobody's cost.

    Refreshes are sheddable `bulk` work, so full backends refuse them first. Requests do not join
    refreshes, so no request waits behind bulk work.
    """

    def __init__(
        self, *, runner: WorkRunner, owner: ItemOwner, is_computed: Callable[[CacheKey], bool]
    ) -> None:
        self._runner = runner
        self._owner = owner
        self._is_computed = is_computed
        self._keys: set[CacheKey] = set()
        self.begun = 0
        self.skipped = 0
        """The number of items not refreshed because too many refreshes were under way."""

    def __len__(self) -> int:
        return len(self._keys)

    def refresh(self, prepared: PreparedRequest, indexes: Sequence[int]) -> None:
        """Start to refresh the items that nobody computes, up to the allowed number."""
        document = prepared.plan.runtime.document
        deadline = asyncio.get_running_loop().time() + document.deadline.default
        work = prepared.work(
            self._owner,
            deadline=deadline,
            is_shared=True,
            criticality=Criticality.SHEDDABLE,
            lane="bulk",
        )
        begun: list[OpenItem] = []
        for index in indexes:
            key = prepared.keys[index]
            if key in self._keys or self._is_computed(key):
                continue
            if len(self._keys) >= document.cache.refreshes:
                self.skipped += 1
                continue
            self._keys.add(key)
            item = OpenItem(work, index, prepared.request.items[index], key)
            item.waiters.append(self)
            begun.append(item)
        if begun:
            self.begun += len(begun)
            try:
                self._runner.start(begun)
            except Exception:  # whatever it was, the places must not stay taken
                self.items_ended(begun)
                raise

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Let the items be refreshed anew from here on. See `ItemWaiter`."""
        self._keys.difference_update([item.key for item in items])


class LastAnswers:
    """Finds stale answers for items that the cache does not have.

    An answer of another revision is stale since this worker first missed an answer of the
    present one, or since its own time was over, whichever was earlier.
    """

    def __init__(
        self,
        *,
        cache: ResultStore,
        refresher: Refresher,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._cache = cache
        self._wall = wall
        self._refresher = refresher
        self._revisions: dict[str, tuple[str, float]] = {}
        self._served = self._served_on_error = 0

    def find(
        self,
        prepared: PreparedRequest,
        missing: Sequence[int],
        directives: CacheDirectives,
        on_found: Callable[[StaleAnswersByIndex], object],
    ) -> None:
        """Call `on_found` with the stale answers to `missing` that are not too old for the caller.

        `on_found` may be called before this returns.
        """
        unrevised = prepared.plan.unrevised
        if unrevised is None or not _accepts_stale(prepared, directives):
            on_found({})
            return
        items = prepared.request.items
        is_usable = partial(_may_stand_in, prepared, max_age=directives.max_age)
        keys = unrevised.keys([items[index] for index in missing])

        def looked_up(found: list[CacheHit | None]) -> None:
            try:
                stale = self._stale_of(prepared, missing, found)
            except Exception as bug:  # noqa: BLE001 - somebody waits, and can be answered without
                log_failure(bug)
                stale = {}
            on_found(stale)

        self._cache.lookup_nowait(keys, looked_up, is_usable)

    def _stale_of(
        self, prepared: PreparedRequest, missing: Sequence[int], found: Sequence[CacheHit | None]
    ) -> StaleAnswersByIndex:
        now = self._wall()
        missed_since = self._revision_since(prepared.plan.model, now)
        stale: StaleAnswersByIndex = {}
        for index, hit in zip(missing, found, strict=True):
            if hit is None:
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
