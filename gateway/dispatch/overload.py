"""Finds the failures of items that the work of other requests has caused."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.backend_call import BackendCall
from sluicegate.gateway.dispatch.work import OpenItem
from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import BackendId, Endpoint, ItemFailure, ItemOutcome, ServedModel

_MOST: Final = 1024
"""The number of backends' refusals to remember."""


class OverloadCauses:
    """Distinguishes failures that other requests' work caused from failures of backends.

    It belongs to the event loop and uses the loop's clock.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._refused: dict[tuple[BackendId, str], float] = {}
        """When backends last refused work of a model because they are too busy."""

    def note(
        self, endpoint: Endpoint, model: ServedModel, failed: Iterable[tuple[OpenItem, ItemFailure]]
    ) -> None:
        """Note that work of a model failed at a backend."""
        if any(failure.code == Overloaded.code for _, failure in failed):
            key = (endpoint.backend, model.info.name)
            self._refused.pop(key, None)
            if len(self._refused) >= _MOST:
                del self._refused[next(iter(self._refused))]
            self._refused[key] = asyncio.get_running_loop().time()

    def explain(
        self, outcomes: Iterable[tuple[OpenItem, ItemOutcome]], calls: Sequence[BackendCall]
    ) -> list[tuple[OpenItem, ItemOutcome]]:
        """Return the outcomes. Outcomes that are late because of other work say so.

        `calls` are all calls that may answer the items. The delay is the most seconds of other
        work that a call found, or finds now, before its own work. It is a call's whole time if the
        backend refused other work of the model meanwhile.
        """
        queueing = max(
            max(call.queueing, self._fleet.queueing(call.endpoint, own=call.own)) for call in calls
        )
        began = min(call.began for call in calls)
        refused = {item for call in calls if self._has_refused(call) for item in call.items}
        explained: list[tuple[OpenItem, ItemOutcome]] = []
        for item, outcome in outcomes:
            given = item.work.deadline - began
            wait = max(queueing, given) if item in refused else queueing
            explained.append((item, failures.explained(outcome, queueing=wait, given=given)))
        return explained

    def _has_refused(self, call: BackendCall) -> bool:
        """Return whether the backend of a call has refused work since the call began."""
        refused = self._refused.get((call.endpoint.backend, call.work.model.info.name))
        return refused is not None and refused >= call.began
