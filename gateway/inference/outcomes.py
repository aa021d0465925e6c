"""Makes item outcomes of cache entries and of flights, and cache entries of outcomes."""

import asyncio

from backends.protocol import ModelInfo
from gateway.cache.entry import CachedResult
from gateway.dispatch import failures
from gateway.errors import DeadlineExceeded, InternalError
from gateway.types import ItemFailure, ItemOutcome, Source

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
        return ItemOutcome(source=Source.FAILED, failure=failure, age=age, tier=tier)
    return ItemOutcome(
        source=Source.HIT,
        result=entry.payload,
        truncated_from=entry.truncated_from,
        age=age,
        tier=tier,
    )


def joined_outcome(entry: CachedResult, now: float) -> ItemOutcome:
    """Return what another worker has just computed, as the outcome of one who waited for it."""
    if entry.status != 200:  # noqa: PLR2004
        failure = ItemFailure(status=entry.status, code=entry.code, detail=entry.detail)
        return ItemOutcome(
            source=Source.FAILED, failure=failure, age=max(0.0, now - entry.stored_at), tier="redis"
        )
    return ItemOutcome(
        source=Source.COLLAPSED, result=entry.payload, truncated_from=entry.truncated_from
    )


def refused_if_truncated(outcome: ItemOutcome, info: ModelInfo) -> ItemOutcome:
    """Return a refusal in place of an answer to a truncated text, for `truncate: false`."""
    if not outcome.truncated_from:
        return outcome
    failure = ItemFailure(
        status=422,
        code="input_too_long",
        detail=f"the text has {outcome.truncated_from} tokens or more; `{info.name}` reads at most"
        f" {info.max_tokens}; shorten it, or leave out `truncate`",
    )
    return ItemOutcome(source=Source.FAILED, failure=failure, age=outcome.age, tier=outcome.tier)


def kept_entry(
    outcome: ItemOutcome, *, now: float, ttl: float, owner: str = "", owner_epoch: int = 0
) -> CachedResult:
    """Return what the cache keeps of an outcome for `ttl` seconds: an answer or a refusal.

    `owner` is whose request computed it, where other tenants may be given it too.
    """
    failure = outcome.failure
    return CachedResult(
        payload=outcome.result,
        status=200 if failure is None else failure.status,
        code="" if failure is None else failure.code,
        detail="" if failure is None else failure.detail,
        rows=outcome.rows,
        tokens=outcome.tokens,
        stored_at=now,
        expires_at=now + ttl,
        owner=owner,
        owner_epoch=owner_epoch,
        truncated_from=outcome.truncated_from,
    )


def flight_outcome(
    future: asyncio.Future[ItemOutcome], *, leads: bool, otherwise: ItemOutcome = LATE
) -> ItemOutcome:
    """Return the outcome of a flight; those who joined it are not charged for the work."""
    if not future.done():
        return otherwise
    outcome = future.result()
    if leads or outcome.failure is not None:
        return outcome
    return ItemOutcome(
        source=Source.COLLAPSED, result=outcome.result, truncated_from=outcome.truncated_from
    )
