"""Finds what of a request's failures is due to the work of others."""

from collections.abc import Sequence

from gateway.dispatch import failures
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.work import Outcomes, Work
from gateway.routing.fleet import Fleet
from gateway.types import ItemOutcome, Source


def shed_each(work: Work, fleet: Fleet, retry_after: float) -> Outcomes:
    """Return the outcomes of shed items of several callers, who are to come back one by one."""
    afters = [fleet.shed(work.model, work.criticality) or retry_after for _ in work.items]
    return [
        (item.index, ItemOutcome(source=Source.FAILED, failure=failures.shed(after)))
        for item, after in zip(work.items, afters, strict=True)
    ]


def with_causes(
    outcomes: Outcomes, work: Work, attempts: Sequence[Attempt], fleet: Fleet, *, deadline: float
) -> Outcomes:
    """Return the outcomes; those that are late because of others' work say so.

    That is the most seconds of it that an attempt found, or finds now, before its own.
    """
    # Gathered items are of requests that know nothing of each other.
    own = 1 if work.is_gathered else len(work.items)
    queueing = max(
        max(attempt.queueing, fleet.queueing(attempt.endpoint, own=own)) for attempt in attempts
    )
    given = deadline - min(attempt.started for attempt in attempts)
    return failures.with_overload(outcomes, queueing=queueing, given=given)
