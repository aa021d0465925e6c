"""Refreshes stale answers in the background: each item once, few at a time, with low priority."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.cache.key import CacheKey
from gateway.dispatch.work import Outcomes, WorkRunner
from gateway.inference.prepared_request import PreparedRequest
from gateway.types import Criticality


class Refresher:
    """Refreshes items without charging a tenant's limits or billing anybody.

    Refreshes are sheddable `bulk` work, so full backends refuse them first. Requests do not join
    refreshes, so no request waits behind bulk work.
    """

    def __init__(
        self,
        *,
        runner: WorkRunner,
        keep: Callable[[PreparedRequest, Outcomes], None],
        is_computed: Callable[[CacheKey], bool],
    ) -> None:
        self._runner = runner
        self._keep = keep
        self._is_computed = is_computed
        self._items: set[CacheKey] = set()
        self.begun = 0
        self.skipped = 0
        """The number of items not refreshed because too many refreshes were under way."""

    def __len__(self) -> int:
        return len(self._items)

    def refresh(self, prepared: PreparedRequest, indexes: Sequence[int]) -> None:
        """Start to refresh the items that nobody computes, up to the allowed number."""
        most = prepared.plan.runtime.document.cache.refreshes
        begun: list[int] = []
        for index in indexes:
            key = prepared.keys[index]
            if key in self._items or self._is_computed(key):
                continue
            if len(self._items) >= most:
                self.skipped += 1
                continue
            self._items.add(key)
            begun.append(index)
        if begun:
            self.begun += len(begun)
            self._start(prepared, begun)

    def _start(self, prepared: PreparedRequest, indexes: Sequence[int]) -> None:
        def settle(outcomes: Outcomes) -> None:
            # From here on the items may be refreshed anew.
            self._items.difference_update([prepared.keys[index] for index, _ in outcomes])
            self._keep(prepared, outcomes)

        work = prepared.work(
            indexes, is_shared=True, criticality=Criticality.SHEDDABLE, lane="bulk"
        )
        allowed = prepared.plan.runtime.document.deadline.default
        deadline = asyncio.get_running_loop().time() + allowed
        self._runner.start(work, deadline=deadline, settle=settle)
