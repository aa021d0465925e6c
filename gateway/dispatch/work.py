"""What the dispatcher is given, the missed items of one request, and whatever runs them."""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from backends.protocol import Task
from gateway.cache.entry import Validity
from gateway.cache.key import CacheKey
from gateway.types import Criticality, ItemOutcome, Principal, ServedModel


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item; `index` is the caller's name for it, unique within the work.

    `scope` says who may share its rows; items of equal `affinity` meet in one backend. `key` is
    that of an answer which other workers may compute, or wait for; else there is none.
    """

    index: int
    body: bytes
    scope: str
    affinity: bytes
    key: CacheKey | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Items that share model, task and parameters (msgpack), asked for by `principal`."""

    model: ServedModel
    task: Task
    parameters: bytes
    items: tuple[WorkItem, ...]
    principal: Principal | None = None
    """Whose limits it counts against; nobody's is not limited."""
    criticality: Criticality = Criticality.DEFAULT
    lane: Literal["interactive", "bulk"] = "interactive"
    truncate: bool = True
    is_valid: Validity | None = None
    """Tells whether a stored answer may be given; `None`: every one may."""
    atomic: bool = False
    """Items of a request that is of no use without any of them: none runs unless all may."""


class WorkRunner(Protocol):
    """Runs items on backends; settles every item exactly once, at the latest at the deadline."""

    async def run(
        self,
        work: Work,
        *,
        deadline: float,
        settle: Callable[[int, ItemOutcome], None],
        traceparent: str = "",
    ) -> None:
        """Settle all of `work`; `deadline` is of the event loop's clock."""
        ...
