"""How an item ends, from what the cache held or from the flight it was part of."""

import asyncio

from gateway.cache.entry import Entry
from gateway.dispatch import failures
from gateway.types import ItemFailure, ItemOutcome, Source

LATE = ItemOutcome(
    source=Source.FAILED,
    failure=ItemFailure(
        status=504,
        code="deadline_exceeded",
        detail="The request's time ran out; send fewer items, or ask for more with"
        " `X-Request-Timeout`.",
    ),
)
LOST = ItemOutcome(
    source=Source.FAILED,
    failure=ItemFailure(
        status=500, code="internal_error", detail="The gateway failed; its log says why."
    ),
)
GIVEN_UP = ItemOutcome(source=Source.FAILED, failure=failures.cancelled())


def hit_outcome(entry: Entry, tier: str, now: float, max_age: float | None) -> ItemOutcome | None:
    """Return a stored answer as an outcome, unless it is older than the caller accepts."""
    age = max(0.0, now - entry.stored_at)
    if max_age is not None and age > max_age:
        return None
    if entry.status != 200:  # noqa: PLR2004
        failure = ItemFailure(status=entry.status, code=entry.code, detail=entry.detail)
        return ItemOutcome(source=Source.FAILED, failure=failure, age=age, tier=tier)
    return ItemOutcome(source=Source.HIT, result=entry.payload, age=age, tier=tier)


def kept_entry(
    outcome: ItemOutcome, *, now: float, ttl: float, owner: str = "", owner_epoch: int = 0
) -> Entry:
    """Return what the cache keeps of an outcome for `ttl` seconds: an answer or a refusal.

    `owner` is whose request computed it, where other tenants may be given it too.
    """
    failure = outcome.failure
    return Entry(
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
    )


def flight_outcome(future: asyncio.Future[ItemOutcome], *, leads: bool) -> ItemOutcome:
    """Return what a flight ended with; to those who joined it cost nothing."""
    if not future.done():
        return LATE
    outcome = future.result()
    if leads or outcome.failure is not None:
        return outcome
    return ItemOutcome(source=Source.COLLAPSED, result=outcome.result)
