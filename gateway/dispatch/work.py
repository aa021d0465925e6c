"""Declares work, the missed items of one request, and the interface that runs it."""

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from backends.protocol import Task
from gateway.cache.entry import Validity
from gateway.cache.key import CacheKey
from gateway.types import Criticality, ItemOutcome, Principal, ServedModel

Settle = Callable[[int, ItemOutcome], None]
"""Takes the outcome of an item, by the item's index."""


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item; `index` identifies it within the work.

    `scope` says who may share its rows; items of equal `affinity` are sent to one backend. `key` is
    the cache key where other workers may compute the answer or wait for it, else `None`.
    """

    index: int
    body: bytes
    scope: str
    affinity: bytes
    key: CacheKey | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Items of `principal` that share model, task and parameters (msgpack)."""

    model: ServedModel
    task: Task
    parameters: bytes
    items: tuple[WorkItem, ...]
    principal: Principal | None = None
    """Whose limits it counts against; without one it is not limited."""
    criticality: Criticality = Criticality.DEFAULT
    lane: Literal["interactive", "bulk"] = "interactive"
    truncate: bool = True
    is_valid: Validity | None = None
    """Returns whether a stored answer may be used; `None`: every one may."""
    atomic: bool = False
    """Admitted together or not at all: the request is of no use with a part of them."""


class StartedWork(Protocol):
    """Work that has begun."""

    def cancel(self) -> object:
        """Settle what is open as cancelled, at once or soon."""
        ...


class WorkRunner(Protocol):
    """Runs items on backends; settles every item exactly once, at the latest at the deadline."""

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> StartedWork:
        """Begin `work`; `deadline` is of the event loop's clock.

        Items may be settled before this returns. `settle` must not raise.
        """
        ...


async def finish(work: Work, settle: Settle, start: Callable[[Settle], StartedWork]) -> None:
    """Start `work` by `start`, which is given the callback, and return when all is settled.

    When cancelled, so is the work.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(work.items)

    def count(index: int, outcome: ItemOutcome) -> None:
        nonlocal left
        left -= 1
        if not left and not ended.done():
            ended.set_result(None)
        settle(index, outcome)

    started = start(count)
    try:
        if left:
            await ended
    except asyncio.CancelledError:
        started.cancel()
        raise
