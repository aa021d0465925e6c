"""Declares open items, the missed items of requests, and the interface that has them computed.

An `OpenItem` is open from its claim until its settlement. Only `settle` writes its outcome, and
only once, so whoever is in charge of an item may settle it without asking who else has.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Literal, Protocol

import msgspec

from sluicegate.gateway.cache.entry import Validity
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.tasks import TaskStarter, log_failure
from sluicegate.gateway.types import (
    Criticality,
    ItemFailure,
    ItemOutcome,
    Principal,
    ServedModel,
    Source,
)
from sluicegate.wire.protocol import Task


class Work(msgspec.Struct, eq=False, kw_only=True):
    """What the open items of one request share.

    `owner` stores the outcomes. Limits of `principal` are charged; without one, no limits apply.
    `deadline` is a time on the event loop's clock.
    """

    model: ServedModel
    task: Task
    parameters: bytes
    """The parameters in msgpack."""
    owner: "ItemOwner"
    deadline: float
    scope: str = ""
    """Who may share the items' rows."""
    principal: Principal | None = None
    criticality: Criticality = Criticality.DEFAULT
    lane: Literal["interactive", "bulk"] = "interactive"
    truncate: bool = True
    is_valid: Validity | None = None
    """Returns whether a stored answer may be used. `None` accepts every answer."""
    is_shared: bool = False
    """Whether other workers may compute the items or wait for them."""
    atomic: bool = False
    """Whether a backend must admit all items or none, because the request needs all of them."""
    traceparent: str = ""


class OpenItem(msgspec.Struct, eq=False):
    """An item from its claim to its settlement.

    `index` is its place in the request, and `key` its cache key.
    """

    work: Work
    index: int
    body: bytes
    key: CacheKey
    outcome: ItemOutcome | None = None
    followers: int = 0
    """The requests that joined the item."""
    calls: int = 0
    """The calls to backends that may still answer it."""
    waiters: "list[ItemWaiter]" = []


class ItemOwner(Protocol):
    """Takes items that were settled, before their waiters hear of it."""

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Take items of this owner that were settled together."""
        ...


class ItemWaiter(Protocol):
    """Waits for items."""

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Note that these items, which list this waiter, were settled together."""
        ...


class WorkRunner(Protocol):
    """Has items computed, and settles each, at the latest at the deadline of its work."""

    @property
    def cancel(self) -> Callable[[Collection[OpenItem]], None]:
        """Settles items as cancelled, and ends the calls for which nobody waits then."""
        ...

    def start(self, items: Sequence[OpenItem]) -> None:
        """Begin to compute the items, which are of one work. Some may be settled at once."""
        ...


def settle(outcomes: Iterable[tuple[OpenItem, ItemOutcome]]) -> int:
    """Give items their outcomes, unless they have one. Return how many had none.

    Owners and then waiters hear once of all their items.
    """
    count = 0
    owned: dict[ItemOwner, list[OpenItem]] = {}
    waiting: dict[ItemWaiter, list[OpenItem]] = {}
    for item, outcome in outcomes:
        if item.outcome is not None:
            continue
        item.outcome = outcome
        count += 1
        owned.setdefault(item.work.owner, []).append(item)
        for waiter in item.waiters:
            waiting.setdefault(waiter, []).append(item)
        # Waiters refer to their items: cycles are left to the garbage collector, at its price.
        item.waiters.clear()
    for told in (owned, waiting):
        for listener, items in told.items():
            try:
                listener.items_ended(items)
            except Exception as bug:  # noqa: BLE001 - others wait for what was settled with it
                log_failure(bug)
    return count


def settle_failed(items: Iterable[OpenItem], failure: ItemFailure) -> int:
    """Settle those of the items that are open as failed."""
    outcome = ItemOutcome(source=Source.FAILED, failure=failure)
    return settle([(item, outcome) for item in items])


def are_open(items: Iterable[OpenItem]) -> list[OpenItem]:
    """Return the items that are open."""
    return [item for item in items if item.outcome is None]


def run(
    tasks: TaskStarter, steps: Coroutine[object, object, None], left: Collection[OpenItem]
) -> None:
    """Run `steps` in a task. At its end, settle what is open of `left` as failed.

    So the steps take an item out of `left` when they pass it on.
    """
    tasks.create_task(steps).add_done_callback(partial(_ended, left))


def _ended(left: Collection[OpenItem], task: asyncio.Task[None]) -> None:
    failure = failures.CANCELLED
    if not task.cancelled():
        failure = failures.UNEXPECTED
        if (error := task.exception()) is not None:
            log_failure(error)
    settle_failed(left, failure)
