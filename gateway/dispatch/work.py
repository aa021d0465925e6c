"""Declares work, the missed items of one request, and the interface that runs it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from gateway.cache.entry import Validity
from gateway.cache.key import CacheKey
from gateway.types import Criticality, ItemOutcome, Principal, ServedModel
from wire.protocol import Task

Outcomes = Sequence[tuple[int, ItemOutcome]]
"""Outcomes of items that became known together, each with the item's index."""
Settle = Callable[[Outcomes], None]
"""Takes outcomes. A call gets all outcomes of one read."""


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item. `index` identifies it within the work.

    `scope` says who may share its rows. Items of equal `affinity` go to one backend. `key` is the
    cache key if other workers may compute the answer or wait for it, else `None`.
    """

    index: int
    body: bytes
    scope: str
    affinity: bytes
    key: CacheKey | None = None
    traceparent: str = ""
    """The trace context of the item's request, if the work is gathered from several requests."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Items of `principal` that share model, task and parameters (msgpack)."""

    model: ServedModel
    task: Task
    parameters: bytes
    items: tuple[WorkItem, ...]
    principal: Principal | None = None
    """The principal whose limits the work counts against. Without one, no limits apply."""
    criticality: Criticality = Criticality.DEFAULT
    lane: Literal["interactive", "bulk"] = "interactive"
    truncate: bool = True
    is_valid: Validity | None = None
    """Returns whether a stored answer may be used. `None` accepts every answer."""
    atomic: bool = False
    """Whether a backend must admit all items or none, because the request needs all of them."""
    is_gathered: bool = False
    """Whether each item belongs to another request, and is routed as if it were alone."""


class StartedWork(Protocol):
    """Work that has begun."""

    def cancel(self) -> object:
        """Settle the open items as cancelled, at once or soon."""
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
        """Begin `work`. `deadline` is a time on the event loop's clock.

        Items may be settled before this returns. `settle` must not raise.
        """
        ...


async def finish(work: Work, settle: Settle, start: Callable[[Settle], StartedWork]) -> None:
    """Start `work` by `start`, which gets the callback, and return when all items are settled.

    Cancelling this coroutine cancels the work.
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
