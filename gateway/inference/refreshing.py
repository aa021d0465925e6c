"""Refreshes stale answers in the background: each item once, few at a time, with low priority."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.cache.key import CacheKey
from gateway.dispatch.work import ItemOwner, OpenItem, WorkRunner
from gateway.inference.prepared_request import PreparedRequest
from gateway.types import Criticality


class Refresher:
    """Refreshes items without charging a tenant's limits or billing anybody.

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
