"""Waits for the items of a request that are in flight. The request leads or has joined them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import msgspec

from gateway.dispatch.work import StartedWork
from gateway.inference.coalescing import Flight
from gateway.inference.outcomes import GIVEN_UP, LATE, joined_outcome
from gateway.telemetry.spans import Span
from gateway.types import Caller, ItemOutcome

# What a waiter is given beyond the deadline to hear what the dispatcher settled at it.
_GRACE = 0.05
# Failures of a leader that say nothing about whoever joined it.
_LEADERS_OWN = frozenset({"deadline_exceeded", "cancelled", "rate_limited"})
# A joined request of higher criticality is tried again where its leader is refused with this.
_SHED = "overloaded"


class ItemWaits(msgspec.Struct, eq=False, dict=True):
    """Holds the items of a request that are in flight, by index: led items and joined items.

    `work` computes the led items. A request that `is_whole` needs all its items.
    """

    caller: Caller
    is_whole: bool
    led: dict[int, Flight] = {}
    joined: dict[int, Flight] = {}
    work: StartedWork | None = None
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _open: int = 0
    _is_failing: bool = False
    _on_end: Callable[[bool], object] | None = None
    _timer: asyncio.TimerHandle | None = None

    @cached_property
    def _led_flights(self) -> frozenset[Flight]:
        """The flights of `led`, which is complete before `on_end`."""
        return frozenset(self.led.values())

    def on_end(self, callback: Callable[[bool], object]) -> None:
        """Call `callback` once every item has ended, or a little after the caller's deadline.

        If the request needs all its items, the first item that fails for good ends the wait. The
        callback then gets `True`. This may happen before the method returns.
        """
        self._on_end = callback
        flights: Collection[Flight] = self.led.values()
        if self.joined:  # an item may be there twice
            flights = dict.fromkeys((*flights, *self.joined.values()))
        self._open = len(flights)
        self._timer = self._loop.call_at(self.caller.deadline + _GRACE, self._end, False)
        ended: list[Flight] = []
        for flight in flights:
            if flight.outcome is None:
                flight.waiters.append(self)
            else:
                ended.append(flight)
        if ended or not flights:
            self.flights_ended(ended)

    def flights_ended(self, flights: Sequence[Flight]) -> None:
        """Note that these have ended."""
        self._open -= len(flights)
        on_end = self._on_end
        if self._is_failing or on_end is None:
            return
        if self.is_whole:
            for flight in flights:
                outcome = flight.outcome
                if outcome and outcome.failure and self._ends_the_request(flight):
                    # Later: what settles the item may be in no state to be cancelled.
                    self._is_failing = True
                    self._loop.call_soon(self._end, True)
                    return
        if not self._open:
            # As `_end` does, without a call for each request.
            timer, self._on_end, self._timer = self._timer, None, None
            if timer is not None:
                timer.cancel()
            on_end(False)

    def cancel(self) -> None:
        """Stop waiting. The callback is not called any more."""
        self._on_end = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fill(self, outcomes: list[ItemOutcome | None], *, has_failed: bool) -> list[int]:
        """Put the outcomes of the items into `outcomes`, and return the items to try again.

        If the request has failed, the rest of its work is cancelled.
        """
        otherwise = GIVEN_UP if has_failed else LATE
        for index, flight in self.led.items():
            outcomes[index] = flight.outcome or otherwise
        for index, flight in self.joined.items():
            outcomes[index] = joined_outcome(flight.outcome) if flight.outcome else otherwise
        if has_failed:
            self._give_up()
            return []
        again = self._failed_for_leader_only() if self.joined else []
        for index in again:
            outcomes[index] = None
        return again

    def describe(self, span: Span) -> None:
        """Note in `span` how many of the items the request leads, and how many it joined."""
        if span.is_recorded:
            span.set("sluicegate.items.led", len(self.led))
            span.set("sluicegate.items.joined", len(self.joined))

    def _give_up(self) -> None:
        """Cancel the work on led items, unless another request waits for them too."""
        own = Counter(self.joined.values())
        led = (flight for flight in self.led.values() if flight.outcome is None)
        if self.work is not None and all(flight.followers <= own[flight] for flight in led):
            self.work.cancel()

    def _failed_for_leader_only(self) -> list[int]:
        """Return the joined items whose leader failed for reasons of its own.

        After the caller's deadline, return no items.
        """
        if self._loop.time() >= self.caller.deadline:
            return []
        own = self._led_flights
        return [
            index
            for index, flight in self.joined.items()
            if self._is_leaders_own(flight) and flight not in own
        ]

    def _end(self, has_failed: bool) -> None:  # noqa: FBT001
        on_end, timer = self._on_end, self._timer
        if on_end is None:
            return
        # As `cancel` does.
        self._on_end = self._timer = None
        if timer is not None:
            timer.cancel()
        on_end(has_failed)

    def _ends_the_request(self, flight: Flight) -> bool:
        """Return whether an item has failed in a way that fails the whole request."""
        return not self._is_leaders_own(flight) or flight in self._led_flights

    def _is_leaders_own(self, flight: Flight) -> bool:
        """Return whether the leader failed for reasons that do not apply to its followers."""
        outcome = flight.outcome
        if outcome is None or outcome.failure is None:
            return False
        code = outcome.failure.code
        return code in _LEADERS_OWN or (
            code == _SHED and self.caller.criticality.outranks(flight.leader)
        )
