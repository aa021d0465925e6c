"""Coalesces equal items that are open at once: one request leads an item, others wait for it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Annotated, Final

import msgspec

from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.work import OpenItem
from sluicegate.gateway.inference.outcomes import GIVEN_UP, LATE, joined_outcome
from sluicegate.gateway.telemetry.spans import NO_SPAN, Span
from sluicegate.gateway.types import Caller, ItemOutcome
from sluicegate.wire.metric_declaration import counter, gauge

# Read by C code, without a step in Python for each item.
_key = attrgetter("key")
# Part of the tag of items with `truncate: false`; no cache key has it.
_WHOLE = b"whole"
OnEnd = Callable[[bool, Sequence[int]], object]
"""Takes whether an item has failed the request, and the indexes of the items to try again."""
# What a waiter is given beyond the deadline to hear what the dispatcher settled at it.
_GRACE = 0.05
# Failures of a leader that say nothing about whoever joined it.
_LEADERS_OWN = frozenset({"deadline_exceeded", "cancelled"})
_LIMITED = "rate_limited"
# A joined request of higher criticality is tried again where its leader is refused with this.
_SHED = "overloaded"


_ITEMS: Final = counter(
    "sluicegate_coalescing_items_total",
    "Cache misses by `role`: `led` (this request started the computation, or waited for another "
    "worker's), `joined` (this worker was already computing an equal item). An item whose wait "
    "failed is counted again.",
    "role",
)
_IN_FLIGHT: Final = gauge(
    "sluicegate_coalescing_in_flight", "Distinct items that are being computed."
)


class FlightStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the items in flight now, and the items that led or joined since the start."""

    in_flight: Annotated[int, _IN_FLIGHT]
    led: Annotated[int, _ITEMS("led")]
    joined: Annotated[int, _ITEMS("joined")]


class Flights:
    """Holds the items that this worker computes, by key.

    Another request may settle an item after the leader has read the cache. If computing the item
    twice matters, the leader reads memory once more after `lead`.
    """

    def __init__(self) -> None:
        self._items: dict[CacheKey, OpenItem] = {}
        self._led = 0
        self._joined = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._items

    def join(self, key: CacheKey, *, truncate: bool = True) -> OpenItem | None:
        """Join the open item of `key`, or return `None` if the caller may `lead` a new one.

        Requests that refuse to `truncate` join only each other.
        """
        item = self._items.get(key if truncate else _whole(key))
        if item is not None:
            self._joined += 1
            item.followers += 1
        return item

    def lead(self, items: Sequence[OpenItem]) -> bool:
        """Let others join the items of a request.

        If a key is repeated or has an open item, return `False` instead.
        """
        keys = map(_key, items) if items[0].work.truncate else map(_whole, map(_key, items))
        new = dict(zip(keys, items, strict=True))
        if len(new) < len(items) or not self._items.keys().isdisjoint(new):
            return False
        self._items.update(new)
        self._led += len(items)
        return True

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Let nobody join items that were settled."""
        for item in items:
            key = item.key if item.work.truncate else _whole(item.key)
            if self._items.get(key) is item:
                del self._items[key]

    def statistics(self) -> FlightStatistics:
        """Return counts for metrics and tests."""
        return FlightStatistics(in_flight=len(self._items), led=self._led, joined=self._joined)


class ItemWaits(msgspec.Struct, eq=False):
    """Waits for the open items of a request: those that it leads, and by index those it joined.

    A request that `is_whole` needs all its items. `span` is around the wait, if it is recorded.
    """

    caller: Caller
    is_whole: bool
    outcomes: list[ItemOutcome | None]
    """The outcomes of the request's items, which the wait completes."""
    led: Sequence[OpenItem] = ()
    joined: dict[int, OpenItem] = {}
    span: Span = NO_SPAN
    is_cancelled: bool = False
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _open: int = 0
    _is_failing: bool = False
    _on_end: OnEnd | None = None
    _timer: asyncio.TimerHandle | None = None

    def begin(self, on_end: OnEnd) -> None:
        """Call `on_end` once every item has ended, or a little after the caller's deadline.

        If the request needs all its items, the first item that fails for good ends the wait.
        `on_end` may be called before the method returns.
        """
        self._on_end = on_end
        items: Collection[OpenItem] = self.led
        if self.joined:  # an item may be there twice
            items = dict.fromkeys((*items, *self.joined.values()))
        self._open = len(items)
        self._timer = self._loop.call_at(self.caller.deadline + _GRACE, self._end, False)
        ended: list[OpenItem] = []
        for item in items:
            if item.outcome is None:
                item.waiters.append(self)
            else:
                ended.append(item)
        if ended or not items:
            self.items_ended(ended)

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemWaiter`."""
        self._open -= len(items)
        if self._is_failing or self._on_end is None:
            return
        if self.is_whole:
            for item in items:
                outcome = item.outcome
                if outcome and outcome.failure and not self._is_leaders_own(item):
                    # Later: what settles the item may be in no state to be cancelled.
                    self._is_failing = True
                    self._loop.call_soon(self._end, True)
                    return
        if not self._open:
            self._end(False)

    def cancel(self) -> None:
        """Stop waiting. The callback is not called any more."""
        self.is_cancelled = True
        self._on_end = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.span.end()

    def forget(self) -> None:
        """Wait for none of the items any more, so that the wait can begin anew."""
        self.led, self.joined = (), {}

    def unwanted(self) -> list[OpenItem]:
        """Return the open led items, or none if another request waits for one of them, too."""
        own = Counter(self.joined.values())
        led = [item for item in self.led if item.outcome is None]
        return led if all(item.followers <= own[item] for item in led) else []

    def _end(self, has_failed: bool) -> None:  # noqa: FBT001
        on_end, timer, outcomes = self._on_end, self._timer, self.outcomes
        if on_end is None:
            return
        # As `cancel` does, without a call for each request.
        self._on_end = self._timer = None
        if timer is not None:
            timer.cancel()
        if self.span.is_recorded:
            self.span.set("sluicegate.items.led", len(self.led))
            self.span.set("sluicegate.items.joined", len(self.joined))
            self.span.end()
        otherwise = GIVEN_UP if has_failed else LATE
        for item in self.led:
            outcomes[item.index] = item.outcome or otherwise
        again = self._end_joined(otherwise, has_failed=has_failed) if self.joined else ()
        on_end(has_failed, again)

    def _end_joined(self, otherwise: ItemOutcome, *, has_failed: bool) -> list[int]:
        """Complete the outcomes of joined items. Return those to try again.

        Their leaders failed for reasons of their own, and it is not after the caller's deadline.
        """
        again: list[int] = []
        may_try = not has_failed and self._loop.time() < self.caller.deadline
        for index, item in self.joined.items():
            is_leaders = self._is_leaders_own(item)
            if is_leaders and may_try:
                again.append(index)
            else:
                # What the leader was refused for is none of this caller's business.
                outcome = None if is_leaders else item.outcome
                self.outcomes[index] = joined_outcome(outcome) if outcome else otherwise
        return again

    def _is_leaders_own(self, item: OpenItem) -> bool:
        """Return whether another leader failed for reasons that do not apply to its followers."""
        outcome = item.outcome
        is_led_here = bool(self.led) and item.work is self.led[0].work
        if outcome is None or outcome.failure is None or is_led_here:
            return False
        code = outcome.failure.code
        if code == _LIMITED:  # the same limits hold for other requests of the same caller
            return item.work.principal != self.caller.principal
        return code in _LEADERS_OWN or (
            code == _SHED and self.caller.criticality.outranks(item.work.criticality)
        )


def _whole(key: CacheKey) -> CacheKey:
    return CacheKey(key.address, key.tag + _WHOLE)
