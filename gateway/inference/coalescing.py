"""Coalesces equal items that are in flight at once, so that each is computed once."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.cache.key import CacheKey
from gateway.tasks import log_failure
from gateway.types import Criticality, ItemOutcome


class Flight(msgspec.Struct, eq=False):
    """An item that is being computed. Its end sets `outcome` and notifies `waiters`.

    `leader` is the criticality of the request that leads, and `followers` counts the requests that
    joined.
    """

    leader: Criticality
    followers: int = 0
    outcome: ItemOutcome | None = None
    waiters: "list[FlightWaiter]" = []


class FlightWaiter(Protocol):
    """Waits for flights."""

    def flights_ended(self, flights: Sequence[Flight]) -> None:
        """Note that `flights` of this waiter have ended together."""
        ...


class FlightStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the items in flight now, and the items that led or joined since the start."""

    in_flight: int
    led: int
    joined: int


class Flights:
    """Holds the items that this worker computes, by key.

    The leader must call `settle` in every case, because the followers wait for the outcome.
    Another request may settle an item after the leader has read the cache. If computing the item
    twice matters, the leader reads memory once more after `lead`.
    """

    def __init__(self) -> None:
        self._flights: dict[CacheKey, Flight] = {}
        self._led = 0
        self._joined = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._flights

    def join(self, key: CacheKey) -> Flight | None:
        """Join the flight of `key`, or return `None` if the caller may `lead` a new flight."""
        flight = self._flights.get(key)
        if flight is not None:
            self._joined += 1
            flight.followers += 1
        return flight

    def lead(self, key: CacheKey, criticality: Criticality = Criticality.DEFAULT) -> Flight:
        """Begin a flight of `key`, which must not have one."""
        flight = self._flights[key] = Flight(criticality)
        self._led += 1
        return flight

    def lead_all(
        self, keys: Sequence[CacheKey], criticality: Criticality = Criticality.DEFAULT
    ) -> list[Flight] | None:
        """Begin flights of `keys`, or return `None` if a key is repeated or has a flight."""
        flights = self._flights
        if len(keys) == 1:
            if keys[0] in flights:
                return None
            only = flights[keys[0]] = Flight(criticality)
            self._led += 1
            return [only]
        led = [Flight(criticality) for _ in keys]
        new = dict(zip(keys, led, strict=True))
        if len(new) < len(led) or not flights.keys().isdisjoint(new):
            return None
        flights.update(new)
        self._led += len(led)
        return led

    def settle(self, key: CacheKey, outcome: ItemOutcome) -> None:
        """Give `outcome` to all waiters of `key`, and end its flight."""
        self.settle_all((key,), [(0, outcome)])

    def settle_all(
        self, keys: Sequence[CacheKey], outcomes: Sequence[tuple[int, ItemOutcome]]
    ) -> None:
        """Settle keys whose outcomes became known together, and notify each waiter once.

        Each outcome comes with the index of its key in `keys`.
        """
        ended: dict[FlightWaiter, list[Flight]] = {}
        # Successive flights usually have the same waiter.
        last: FlightWaiter | None = None
        its: list[Flight] = []
        end = self._flights.pop
        for place, outcome in outcomes:
            flight = end(keys[place], None)
            if flight is None:
                continue
            flight.outcome = outcome
            for waiter in flight.waiters:
                if waiter is not last:
                    last, its = waiter, ended.setdefault(waiter, [])
                its.append(flight)
            flight.waiters.clear()
        for waiter, flights in ended.items():
            try:
                waiter.flights_ended(flights)
            except Exception as bug:  # noqa: BLE001 - others wait for what was settled with it
                log_failure(bug)

    def statistics(self) -> FlightStatistics:
        """Return counts for metrics and tests."""
        return FlightStatistics(in_flight=len(self._flights), led=self._led, joined=self._joined)
