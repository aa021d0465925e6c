"""Finds the failures of a request that the work of other requests has caused."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.dispatch import failures
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.work import Outcomes, Work, WorkItem
from gateway.errors import Overloaded
from gateway.routing.fleet import Fleet
from gateway.types import BackendId, Endpoint, ItemFailure, ItemOutcome, ServedModel, Source

_MOST: Final = 1024
"""The number of backends' refusals to remember."""


def shed_each(work: Work, fleet: Fleet, retry_after: float) -> Outcomes:
    """Return the outcomes of shed items of several callers, who are to come back one by one."""
    afters = [fleet.shed(work.model, work.criticality) or retry_after for _ in work.items]
    return [
        (item.index, ItemOutcome(source=Source.FAILED, failure=failures.shed(after)))
        for item, after in zip(work.items, afters, strict=True)
    ]


class OverloadCauses:
    """Distinguishes failures that other requests' work caused from failures of backends.

    It belongs to the event loop and uses the loop's clock.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._refused: dict[tuple[BackendId, str], float] = {}
        """When backends last refused work of a model because they are too busy."""

    def note(
        self, endpoint: Endpoint, model: ServedModel, failed: Iterable[tuple[WorkItem, ItemFailure]]
    ) -> None:
        """Note that work of a model failed at a backend."""
        if any(failure.code == Overloaded.code for _, failure in failed):
            key = (endpoint.backend, model.info.name)
            self._refused.pop(key, None)
            if len(self._refused) >= _MOST:
                del self._refused[next(iter(self._refused))]
            self._refused[key] = asyncio.get_running_loop().time()

    def explain(
        self, outcomes: Outcomes, work: Work, attempts: Sequence[Attempt], deadline: float
    ) -> Outcomes:
        """Return the outcomes. Outcomes that are late because of other work say so.

        The delay is the most seconds of other work that an attempt found, or finds now, before its
        own work. It is the attempt's whole time if the backend refused other work of the model
        meanwhile.
        """
        # Gathered items belong to requests that know nothing of each other.
        own = 1 if work.is_gathered else len(work.items)
        queueing = max(
            max(attempt.queueing, self._fleet.queueing(attempt.endpoint, own=own))
            for attempt in attempts
        )
        given = deadline - min(attempt.started for attempt in attempts)
        refused = [attempt for attempt in attempts if self._has_refused(attempt, work.model)]
        if not refused:
            return failures.with_overload(outcomes, queueing=queueing, given=given)
        sent = {item.index for attempt in refused for item in attempt.items}
        theirs = [one for one in outcomes if one[0] in sent]
        others = [one for one in outcomes if one[0] not in sent]
        return [
            *failures.with_overload(theirs, queueing=max(queueing, given), given=given),
            *failures.with_overload(others, queueing=queueing, given=given),
        ]

    def _has_refused(self, attempt: Attempt, model: ServedModel) -> bool:
        """Return whether the backend of an attempt has refused work since the attempt began."""
        refused = self._refused.get((attempt.endpoint.backend, model.info.name))
        return refused is not None and refused >= attempt.started
