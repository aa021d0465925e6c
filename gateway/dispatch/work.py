"""Declares work, the missed items of one request, and the interface that runs it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from backends.protocol import Task
from gateway.cache.entry import Validity
from gateway.cache.key import CacheKey
from gateway.types import Criticality, ItemOutcome, Principal, ServedModel

Outcomes = Sequence[tuple[int, ItemOutcome]]
"""Outcomes of items that became known together, each with the item's index."""
Settle = Callable[[Outcomes], None]
"""Takes outcomes. It is called with those of one read, not with each of them."""


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
    traceparent: str = ""
    """Of its request, where the work is gathered of several."""


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
    is_gathered: bool = False
    """Each item is of another request, and goes where it would go alone."""


class StartedWork(Protocol):
    """Work that has begun."""

    def cancel(self) -> object:
        """Settle what is open as cancelled, at once or soon."""
        ...


class StartedParts:
    """Work that has begun in parts."""

    def __init__(self, parts: Sequence[StartedWork]) -> None:
        self._parts = parts

    def cancel(self) -> None:
        """Cancel each part."""
        for part in self._parts:
            part.cancel()


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

    def count(outcomes: Outcomes) -> None:
        nonlocal left
        left -= len(outcomes)
        if not left and not ended.done():
            ended.set_result(None)
        settle(outcomes)

    started = start(count)
    try:
        if left:
            await ended
    except asyncio.CancelledError:
        started.cancel()
        raise
