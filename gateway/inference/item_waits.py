"""Waits for the items of a request that are in flight, led by it or joined."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from gateway.inference.coalescing import Flight, FlightMember
from gateway.types import Caller, Criticality, ItemOutcome

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
    """The items of a request that are in flight, by index, and the task for those it leads."""

    def __init__(
        self,
        members: Mapping[int, FlightMember],
        lead: LedTask,
        caller: Caller,
        *,
        is_whole: bool,
    ) -> None:
        self.members = members
        self._lead = lead
        self._caller = caller
        self._is_whole = is_whole
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open = 0

    async def wait(self) -> bool:
        """Wait until every item has ended, at the latest a little after the caller's deadline.

        A request that is of use as a whole only waits no longer than until one item has failed for
        good: then return `True`.
        """
        flights = dict.fromkeys(member.flight for member in self.members.values())
        self._open = len(flights)
        for flight in flights:
            if flight.outcome is None:
                flight.waiters.append(self._flight_ended)
            else:
                self._flight_ended(flight)
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._caller.deadline + _GRACE, self._end, False)
        try:
            return await self._ended
        finally:
            timer.cancel()
            for flight in flights:
                if flight.outcome is None:
                    flight.waiters.remove(self._flight_ended)

    def give_up(self) -> None:
        """Cancel the work on what the request leads, unless another request waits for it too."""
        waiting = [one for one in self.members.values() if one.flight.outcome is None]
        own = Counter(one.flight for one in waiting if not one.leads)
        if all(one.flight.followers <= own[one.flight] for one in waiting if one.leads):
            self._lead.give_up()

    def _flight_ended(self, flight: Flight) -> None:
        self._open -= 1
        if self._is_whole and self._has_failed(flight):
            self._end(True)
        elif not self._open:
            self._end(False)

    def _end(self, has_failed: bool) -> None:  # noqa: FBT001
        if not self._ended.done():
            self._ended.set_result(has_failed)

    def _has_failed(self, flight: Flight) -> bool:
        """Tell whether an item has ended in a way that the whole request does."""
        outcome = flight.outcome
        if outcome is None or outcome.failure is None:
            return False
        leads = any(one.leads for one in self.members.values() if one.flight is flight)
        return leads or not is_leaders_own(outcome, flight.leader, self._caller.criticality)


def is_leaders_own(outcome: ItemOutcome | None, leader: Criticality, joined: Criticality) -> bool:
    """Tell whether the leader's failure has reasons that do not hold for who joined it."""
    if outcome is None or outcome.failure is None:
        return False
    code = outcome.failure.code
    return code in _LEADERS_OWN or (code == _SHED and joined.outranks(leader))
