"""Waits for the items of a request that are in flight, led by it or joined."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from gateway.inference.coalescing import FlightMember, Flights
from gateway.inference.prepared_request import PreparedRequest
from gateway.telemetry.spans import Span
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

    def __init__(self, members: Mapping[int, FlightMember], lead: LedTask) -> None:
        self.members = members
        self._lead = lead
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open = 0

    async def wait(self, caller: Caller, *, is_whole: bool) -> bool:
        """Wait until every item has ended, at the latest a little after the caller's deadline.

        A request that is of use as a whole only waits no longer than until one item has failed for
        good: then return `True`. Shared futures are never cancelled.
        """

        def ended(future: asyncio.Future[ItemOutcome]) -> None:
            self._open -= 1
            if self._ended.done():
                return
            has_failed = is_whole and self._has_failed(future, caller)
            if has_failed or not self._open:
                self._ended.set_result(has_failed)

        futures = {member.outcome for member in self.members.values()}
        self._open = len(futures)
        for future in futures:
            future.add_done_callback(ended)
        try:
            async with asyncio.timeout_at(caller.deadline + _GRACE):
                return await self._ended
        except TimeoutError:
            return False
        finally:
            for future in futures:
                future.remove_done_callback(ended)

    def describe(self, span: Span) -> None:
        """Note in `span` how many of the items the request leads, and how many it joined."""
        if span.is_recorded:
            led = sum(member.leads for member in self.members.values())
            span.set("sluicegate.items.led", led)
            span.set("sluicegate.items.joined", len(self.members) - led)

    def give_up(self, prepared: PreparedRequest, flights: Flights) -> None:
        """Cancel the work on what the request leads, unless another request waits for it too."""
        keys = prepared.flight_keys
        led = {keys[index] for index, member in self.members.items() if member.leads}
        own = Counter(keys[index] for index, member in self.members.items() if not member.leads)
        if all(flights.followers(key) <= own[key] for key in led):
            self._lead.give_up()

    def _has_failed(self, future: asyncio.Future[ItemOutcome], caller: Caller) -> bool:
        """Tell whether an item has ended in a way that the whole request does."""
        outcome = future.result()
        if outcome.failure is None:
            return False
        members = [member for member in self.members.values() if member.outcome is future]
        return any(member.leads for member in members) or not is_leaders_own(
            outcome, members[0].leader, caller.criticality
        )


def is_leaders_own(outcome: ItemOutcome | None, leader: Criticality, joined: Criticality) -> bool:
    """Tell whether the leader's failure has reasons that do not hold for who joined it."""
    if outcome is None or outcome.failure is None:
        return False
    code = outcome.failure.code
    return code in _LEADERS_OWN or (code == _SHED and joined.outranks(leader))
