"""What the dispatcher is given: the missed items of one request."""

from typing import Literal

import msgspec

from backends.protocol import Task
from gateway.cache.key import CacheKey
from gateway.types import Criticality, Principal, ServedModel


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
