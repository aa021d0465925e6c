"""Coalesces equal items that are in flight at once, so that each is computed once."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.cache.key import CacheKey
from gateway.tasks import log_failure
from gateway.types import Criticality, ItemOutcome


class Flight(msgspec.Struct, eq=False):
    """An item that is being computed; `outcome` is set once it has ended.

    `leader` is the criticality of the leader, `followers` counts those who joined. `waiters` are
    told when it ends.
    """

    leader: Criticality
    followers: int = 0
    outcome: ItemOutcome | None = None
    waiters: "list[FlightWaiter]" = []


class FlightWaiter(Protocol):
    """Waits for flights."""

    def flights_ended(self, flights: Sequence[Flight]) -> None:
        """Note that those of its flights have ended that were settled together."""
        ...


class FlightStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Items in flight now; how many led and how many joined since the start."""

    in_flight: int
    led: int
    joined: int


class Flights:
    """The items being computed by this worker, by key.

    The leader must call `settle` in every case, as the followers wait for it.
    An item may have been settled since the cache was read: where computing it twice matters, the
    leader reads memory once more after `lead`.
    """

    def __init__(self) -> None:
        self._flights: dict[CacheKey, Flight] = {}
        self._led = 0
        self._joined = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._flights

    def join(self, key: CacheKey) -> Flight | None:
        """Join `key`'s flight; `None` if there is none yet, which the caller may `lead`."""
        flight = self._flights.get(key)
        if flight is not None:
            self._joined += 1
            flight.followers += 1
        return flight

    def lead(self, key: CacheKey, criticality: Criticality = Criticality.DEFAULT) -> Flight:
        """Begin the flight of `key`, which has none."""
        flight = self._flights[key] = Flight(criticality)
        self._led += 1
        return flight

    def lead_all(
        self, keys: Sequence[CacheKey], criticality: Criticality = Criticality.DEFAULT
    ) -> list[Flight] | None:
        """Begin the flights of `keys`; begin none where one has a flight, or is there twice."""
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
        """Give `outcome` to all who wait for `key`; the next to ask leads anew."""
        self.settle_all((key,), [(0, outcome)])

    def settle_all(
        self, keys: Sequence[CacheKey], outcomes: Sequence[tuple[int, ItemOutcome]]
    ) -> None:
        """Settle those of `keys` whose outcomes became known together; tell each waiter once.

        Outcomes come with the places of their keys.
        """
        ended: dict[FlightWaiter, list[Flight]] = {}
        # Most are of one waiter, item after item.
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
