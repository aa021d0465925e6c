"""Turns failures of calls and backends into failures of items, as callers see them."""

from typing import Final

import msgspec

from sluicegate.gateway.errors import (
    DeadlineExceeded,
    InternalError,
    ModelNotFound,
    Overloaded,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.gateway.types import ItemFailure, ItemOutcome
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Failed

RETRY_AFTER = 1.0
"""Seconds after which to retry, where no backend said otherwise."""
_SERVER_ERROR = 500
# Who waits for others for this part of its time is late because of them.
_QUEUEING_SHARE = 0.25
# In seconds. No server answers faster, so such a call is late without any queue.
_LEAST_GIVEN = 0.001
# A backend says so much at least, whether anything waits there or not.
_LEAST_BACKLOG = 0.1
_FAILURES = range(400, 600)
# Refusals that are about the request itself, which any backend would repeat.
_CALLERS_FAULT = frozenset({400, 413, 422})
CHANGED = frozenset({404, 409})
"""Refusals of a backend that serves other models or revisions than it did."""
# Failures of single items whose status and code mean the same from the gateway.
_SAME_MEANING = frozenset(
    {Overloaded.code, DeadlineExceeded.code, UpstreamUnavailable.code, "algorithm_failed"}
)


EXPIRED: Final = ItemFailure.of(DeadlineExceeded.during("the calls to backends"))
"""The failure of an item whose time ran out."""
GONE: Final = ItemFailure.of(ModelNotFound("No backend serves the model any more."))
"""The failure of an item whose model was removed from all backends since the request began."""
CANCELLED: Final = ItemFailure(
    status=503,
    code="cancelled",
    detail="the work was given up before it was done",
    retryable=True,
    retry_after=RETRY_AFTER,
)
"""The failure of an item whose work was cancelled."""
UNEXPECTED: Final = ItemFailure.of(InternalError("the gateway failed; the error is in its log"))
"""The failure of an item that met a bug of the gateway."""


def unavailable(detail: str = "no backend of the model can be reached") -> ItemFailure:
    """Return the failure of an item that no backend took."""
    return ItemFailure.of(UpstreamUnavailable(detail, retry_after=RETRY_AFTER))


def shed(retry_after: float) -> ItemFailure:
    """Return the failure of an item that was shed for the sake of more critical ones."""
    return ItemFailure.of(Overloaded("every backend of the model is busy", retry_after=retry_after))


def of_call(error: CallFailed) -> ItemFailure:
    """Return the failure of the items of a call that failed for the last time."""
    if error.cause is not Cause.REFUSED:
        return unavailable()
    if error.code == Overloaded.code:
        retry_after = error.retry_after or RETRY_AFTER
        return ItemFailure.of(Overloaded(error.detail, retry_after=retry_after))
    if error.retryable or error.status in CHANGED:
        return unavailable(error.detail)
    if error.status in _CALLERS_FAULT:
        return ItemFailure(status=error.status, code=error.code, detail=error.detail)
    return ItemFailure.of(UpstreamFailed(f"the backend refused the call as `{error.code}`"))


def explained(outcome: ItemOutcome, *, queueing: float, given: float) -> ItemOutcome:
    """Return the outcome. A late outcome becomes a refusal if other work was in the way.

    Other work was in the way if it took much of the `given` seconds. Its time is `queueing` as the
    gateway knows it, or the backlog that the backend reported. A request with less than
    1 ms would be late without any queue, so its outcome stays.
    """
    failure = outcome.failure
    if failure is None or failure.code != DeadlineExceeded.code:
        return outcome
    reported = failure.retry_after or 0.0
    wait = max(queueing, reported if reported > _LEAST_BACKLOG else 0.0)
    if given < _LEAST_GIVEN or wait < given * _QUEUEING_SHARE:
        return outcome
    refused = ItemFailure(
        status=failure.status,
        code=failure.code,
        detail="the model's backends were too busy to answer in the request's time",
        retry_after=wait,
        is_overload=True,
    )
    return msgspec.structs.replace(outcome, failure=refused)


def blames_backend(frame: Failed) -> bool:
    """Tell whether a retryable failure of an item counts against the backend."""
    return frame.code not in _SAME_MEANING


def of_item(frame: Failed) -> ItemFailure:
    """Return the failure of an item that a backend failed."""
    is_odd = frame.status not in _FAILURES  # it must not pass for a success
    if is_odd or (frame.status >= _SERVER_ERROR and frame.code not in _SAME_MEANING):
        return ItemFailure(
            status=UpstreamFailed.status,
            code=UpstreamFailed.code,
            detail=frame.detail,
            retryable=frame.retryable,
        )
    return ItemFailure(
        status=frame.status,
        code=frame.code,
        detail=frame.detail,
        retryable=frame.retryable,
        retry_after=frame.retry_after or (RETRY_AFTER if frame.retryable else None),
    )
