"""Waits for the open items of a request. The request leads or has joined them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import msgspec

from gateway.dispatch.work import OpenItem
from gateway.inference.outcomes import GIVEN_UP, LATE, joined_outcome
from gateway.telemetry.spans import NO_SPAN, Span
from gateway.types import Caller, ItemOutcome

# What a waiter is given beyond the deadline to hear what the dispatcher settled at it.
_GRACE = 0.05
# Failures of a leader that say nothing about whoever joined it.
_LEADERS_OWN = frozenset({"deadline_exceeded", "cancelled", "rate_limited"})
# A joined request of higher criticality is tried again where its leader is refused with this.
_SHED = "overloaded"


class ItemWaits(msgspec.Struct, eq=False, dict=True):
    """Holds the open items of a request, by index: led items and joined items.

    A request that `is_whole` needs all its items. `span` is around the wait, if it is recorded.
    """

    caller: Caller
    is_whole: bool
    led: dict[int, OpenItem] = {}
    joined: dict[int, OpenItem] = {}
    span: Span = NO_SPAN
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _open: int = 0
    _is_failing: bool = False
    _on_end: Callable[[bool], object] | None = None
    _timer: asyncio.TimerHandle | None = None

    @cached_property
    def _own(self) -> frozenset[OpenItem]:
        """The items of `led`, which is complete before `on_end`."""
        return frozenset(self.led.values())

    def on_end(self, callback: Callable[[bool], object]) -> None:
        """Call `callback` once every item has ended, or a little after the caller's deadline.

        If the request needs all its items, the first item that fails for good ends the wait. The
        callback then gets `True`. This may happen before the method returns.
        """
        self._on_end = callback
        items: Collection[OpenItem] = self.led.values()
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
                if outcome and outcome.failure and self._ends_the_request(item):
                    # Later: what settles the item may be in no state to be cancelled.
                    self._is_failing = True
                    self._loop.call_soon(self._end, True)
                    return
        if not self._open:
            self._end(False)

    def cancel(self) -> None:
        """Stop waiting. The callback is not called any more."""
        self._on_end = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.span.end()

    def forget(self) -> None:
        """Wait for none of the items any more, so that the wait can begin anew."""
        self.led, self.joined = {}, {}
        self.__dict__.clear()

    def fill(self, outcomes: list[ItemOutcome | None], *, has_failed: bool) -> list[int]:
        """Put the outcomes of the items into `outcomes`, and return the items to try again."""
        otherwise = GIVEN_UP if has_failed else LATE
        for index, item in self.led.items():
            outcomes[index] = item.outcome or otherwise
        if not self.joined:
            return []
        for index, item in self.joined.items():
            outcomes[index] = joined_outcome(item.outcome) if item.outcome else otherwise
        again = [] if has_failed else self._failed_for_leader_only()
        for index in again:
            outcomes[index] = None
        return again

    def unwanted(self) -> list[OpenItem]:
        """Return the open led items, or none if another request waits for one of them, too."""
        own = Counter(self.joined.values())
        led = [item for item in self.led.values() if item.outcome is None]
        return led if all(item.followers <= own[item] for item in led) else []

    def _failed_for_leader_only(self) -> list[int]:
        """Return the joined items whose leader failed for reasons of its own.

        After the caller's deadline, return no items.
        """
        if self._loop.time() >= self.caller.deadline:
            return []
        own = self._own
        return [
            index
            for index, item in self.joined.items()
            if self._is_leaders_own(item) and item not in own
        ]

    def _end(self, has_failed: bool) -> None:  # noqa: FBT001
        on_end, timer = self._on_end, self._timer
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
        on_end(has_failed)

    def _ends_the_request(self, item: OpenItem) -> bool:
        """Return whether an item has failed in a way that fails the whole request."""
        return not self._is_leaders_own(item) or item in self._own

    def _is_leaders_own(self, item: OpenItem) -> bool:
        """Return whether the leader failed for reasons that do not apply to its followers."""
        outcome = item.outcome
        if outcome is None or outcome.failure is None:
            return False
        code = outcome.failure.code
        return code in _LEADERS_OWN or (
            code == _SHED and self.caller.criticality.outranks(item.work.criticality)
        )
