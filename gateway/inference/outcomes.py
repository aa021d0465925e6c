"""Makes item outcomes of cache entries and of flights."""

from collections.abc import Sequence

import msgspec

from sluicegate.gateway.cache.entry import CachedResult, CacheHit
from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.work import OpenItem
from sluicegate.gateway.errors import DeadlineExceeded, InternalError
from sluicegate.gateway.telemetry.spans import Span
from sluicegate.gateway.types import ItemFailure, ItemOutcome, Source
from sluicegate.wire.protocol import ModelInfo

REFUSED = 422
"""The status of an item that a model does not accept."""
PASSING_REFUSALS = frozenset({"algorithm_too_slow", "guard_too_slow"})
"""The codes of refusals that depend on other work, so the next try may succeed."""
LATE = ItemOutcome(
    source=Source.FAILED,
    failure=ItemFailure.of(DeadlineExceeded.during("the computation")),
)
LOST = ItemOutcome(
    source=Source.FAILED,
    failure=ItemFailure.of(InternalError("The gateway failed; its log says why.")),
)
GIVEN_UP = ItemOutcome(source=Source.FAILED, failure=failures.CANCELLED)


def hit_outcome(entry: CachedResult, tier: str, now: float) -> ItemOutcome:
    """Return a stored answer as an outcome."""
    age = max(0.0, now - entry.stored_at)
    if entry.status != 200:  # noqa: PLR2004
        failure = ItemFailure(status=entry.status, code=entry.code, detail=entry.detail)
        return ItemOutcome(source=Source.FAILED, failure=failure, age=age, tier=tier, arm=entry.arm)
    return ItemOutcome(
        source=Source.HIT,
        result=entry.payload,
        truncated_from=entry.truncated_from,
        arm=entry.arm,
        input_tokens=entry.input_tokens or entry.tokens,
        age=age,
        tier=tier,
    )


def describe_lookup(span: Span, found: Sequence[CacheHit | None]) -> None:
    """Note in `span` what a look-up in the cache found, and the tier of the last hit."""
    if span.is_recorded:
        hits = [hit for hit in found if hit is not None]
        span.set("sluicegate.cache.items", len(found))
        span.set("sluicegate.cache.hits", len(hits))
        if hits:
            span.set("sluicegate.cache.tier", hits[-1].tier)


class SpanOfItems(msgspec.Struct, eq=False):
    """Implements `ItemWaiter`: ends `span` once the last of its items is settled."""

    span: Span
    left: int

    def __post_init__(self) -> None:
        self.span.set("sluicegate.items", self.left)

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemWaiter`."""
        self.left -= len(items)
        if not self.left:
            self.span.end()


def would_repeat(failure: ItemFailure) -> bool:
    """Return whether the same item would be refused again for the same reason."""
    return (
        failure.status == REFUSED and not failure.retryable and failure.code not in PASSING_REFUSALS
    )


def joined_outcome(outcome: ItemOutcome) -> ItemOutcome:
    """Return `outcome` for a request that waited for another request's work, without a charge."""
    if outcome.failure is not None:
        return outcome
    return ItemOutcome(
        source=Source.COLLAPSED,
        result=outcome.result,
        truncated_from=outcome.truncated_from,
        arm=outcome.arm,
        input_tokens=outcome.input_tokens,
        region=outcome.region,
    )


def refused_as_truncated(outcome: ItemOutcome, info: ModelInfo) -> ItemOutcome:
    """Return a refusal in place of an answer to a truncated text, for `truncate: false`."""
    failure = ItemFailure(
        status=422,
        code="input_too_long",
        detail=f"the text has {outcome.truncated_from} tokens or more; `{info.name}` reads at most"
        f" {info.max_tokens}; shorten it, or leave out `truncate`",
    )
    return ItemOutcome(
        source=Source.FAILED,
        failure=failure,
        age=outcome.age,
        tier=outcome.tier,
        region=outcome.region,
    )
