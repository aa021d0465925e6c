"""Waits for the items of a request that are in flight, led by it or joined."""

import asyncio
from collections import Counter

from gateway.inference.coalescing import Flight
from gateway.inference.outcomes import joined_outcome
from gateway.telemetry.spans import Span
from gateway.types import Caller, ItemOutcome

# What a waiter is given beyond the deadline to hear what the dispatcher settled at it.
_GRACE = 0.05
# Failures of a leader that say nothing about whoever joined it.
_LEADERS_OWN = frozenset({"deadline_exceeded", "cancelled", "rate_limited"})
# A joined request of higher criticality is tried again where its leader is refused with this.
_SHED = "overloaded"


class LedTask:
    """The task that computes the items that a request leads. It can be cancelled before it runs."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._is_given_up = False

    def begin(self) -> None:
        """Note that the current task computes it.

        Raises:
            asyncio.CancelledError: it was given up before it began.
        """
        if self._is_given_up:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()

    def give_up(self) -> None:
        """Cancel the task; its items are then settled as cancelled."""
        self._is_given_up = True
        if self._task is not None:
            self._task.cancel()


class ItemWaits:
    """The items of a request that are in flight, by index: those it leads, those it joined.

    `lead` is the task that computes the former.
    """

    def __init__(self, lead: LedTask, caller: Caller, *, is_whole: bool) -> None:
        self.led: dict[int, Flight] = {}
        self.joined: dict[int, Flight] = {}
        self._lead = lead
        self._caller = caller
        self._is_whole = is_whole
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open = 0
        self._own: set[Flight] = set()

    async def wait(self) -> bool:
        """Wait until every item has ended, at the latest a little after the caller's deadline.

        A request that is of use as a whole only waits no longer than until one item has failed for
        good: then return `True`.
        """
        flights = dict.fromkeys((*self.led.values(), *self.joined.values()))
        self._open = len(flights)
        self._own = set(self.led.values())
        ended = self._flight_ended
        for flight in flights:
            if flight.outcome is None:
                flight.waiters.append(ended)
            else:
                ended(flight)
        deadline = self._caller.deadline + _GRACE
        timer = asyncio.get_running_loop().call_at(deadline, self._end, False)
        try:
            return await self._ended
        finally:
            timer.cancel()
            for flight in flights:
                if flight.outcome is None:
                    flight.waiters.remove(ended)

    def fill(self, outcomes: list[ItemOutcome | None], otherwise: ItemOutcome) -> None:
        """Put what became of the items into `outcomes`, `otherwise` where they have not ended."""
        for index, flight in self.led.items():
            outcomes[index] = flight.outcome or otherwise
        for index, flight in self.joined.items():
            outcomes[index] = joined_outcome(flight.outcome) if flight.outcome else otherwise

    def describe(self, span: Span) -> None:
        """Note in `span` how many of the items the request leads, and how many it joined."""
        if span.is_recorded:
            span.set("sluicegate.items.led", len(self.led))
            span.set("sluicegate.items.joined", len(self.joined))

    def give_up(self) -> None:
        """Cancel the work on what the request leads, unless another request waits for it too."""
        own = Counter(self.joined.values())
        led = (flight for flight in self.led.values() if flight.outcome is None)
        if all(flight.followers <= own[flight] for flight in led):
            self._lead.give_up()

    def failed_for_leader_only(self) -> list[int]:
        """Return the items that joined another's lead which failed for reasons of its own.

        None where the caller's deadline has passed.
        """
        if not self.joined or asyncio.get_running_loop().time() >= self._caller.deadline:
            return []
        return [
            index
            for index, flight in self.joined.items()
            if self._is_leaders_own(flight) and flight not in self._own
        ]

    def _flight_ended(self, flight: Flight) -> None:
        self._open -= 1
        if self._ended.done():
            return
        if self._is_whole and self._has_failed(flight):
            self._end(True)
        elif not self._open:
            self._end(False)

    def _end(self, has_failed: bool) -> None:  # noqa: FBT001
        if not self._ended.done():
            self._ended.set_result(has_failed)

    def _has_failed(self, flight: Flight) -> bool:
        """Tell whether an item has ended in a way that the whole request does."""
        if flight.outcome is None or flight.outcome.failure is None:
            return False
        return flight in self._own or not self._is_leaders_own(flight)

    def _is_leaders_own(self, flight: Flight) -> bool:
        """Tell whether the leader's failure has reasons that do not hold for who joined it."""
        outcome = flight.outcome
        if outcome is None or outcome.failure is None:
            return False
        code = outcome.failure.code
        return code in _LEADERS_OWN or (
            code == _SHED and self._caller.criticality.outranks(flight.leader)
        )
