"""Coalesces equal items that are in flight at once, so that each is computed once."""

import asyncio
from typing import NamedTuple

import msgspec

from gateway.cache.key import CacheKey
from gateway.types import Criticality, ItemOutcome


class FlightMember(NamedTuple):
    """One caller's part in a flight: its future outcome, and whether the caller leads it.

    `leader` is the criticality of the leader.
    """

    outcome: asyncio.Future[ItemOutcome]
    leads: bool
    leader: Criticality


class FlightStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Items in flight now; how many led and how many joined since the start."""

    in_flight: int
    led: int
    joined: int


class Flights:
    """The items being computed by this worker, by key.

    The leader must call `settle` in every case, as the followers wait for it. A follower that is
    cancelled must not cancel the shared future: wait with `asyncio.wait`, never for the future
    itself.
    An item may have been settled since the cache was read: where computing it twice matters, the
    leader reads memory once more after `join`.
    """

    def __init__(self) -> None:
        self._flights: dict[CacheKey, FlightMember] = {}
        self._followers: dict[CacheKey, int] = {}
        self._led = 0
        self._joined = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._flights

    def join(self, key: CacheKey, criticality: Criticality = Criticality.DEFAULT) -> FlightMember:
        """Join `key`'s flight; the caller leads it if there is none yet."""
        flight = self._flights.get(key)
        if flight is not None:
            self._joined += 1
            self._followers[key] = self._followers.get(key, 0) + 1
            return flight
        future: asyncio.Future[ItemOutcome] = asyncio.get_running_loop().create_future()
        self._flights[key] = FlightMember(future, leads=False, leader=criticality)
        self._led += 1
        return FlightMember(future, leads=True, leader=criticality)

    def followers(self, key: CacheKey) -> int:
        """Return how many have joined `key`'s flight."""
        return self._followers.get(key, 0)

    def settle(self, key: CacheKey, outcome: ItemOutcome) -> None:
        """Give `outcome` to all who wait for `key`; the next to ask leads anew."""
        flight = self._flights.pop(key, None)
        self._followers.pop(key, None)
        if flight is not None and not flight.outcome.done():
            flight.outcome.set_result(outcome)

    def statistics(self) -> FlightStatistics:
        """Return counts for metrics and tests."""
        return FlightStatistics(in_flight=len(self._flights), led=self._led, joined=self._joined)
