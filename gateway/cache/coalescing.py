"""Lets equal items that are in flight at once be computed once."""

import asyncio

import msgspec

from gateway.cache.key import CacheKey
from gateway.types import ItemOutcome


class FlightStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Items in flight now; how many led and how many joined since the start."""

    in_flight: int
    led: int
    joined: int


class Flights:
    """The items being computed by this worker, by key.

    Whoever leads must `settle`, whatever happens: the others wait for it. A waiter that has gone
    must not take the answer from the rest, so wait with `wait`, never on the future itself.
    An item may have been settled since the cache was asked: look once more after `join` said to
    lead, where computing twice matters.
    """

    def __init__(self) -> None:
        self._futures: dict[CacheKey, asyncio.Future[ItemOutcome]] = {}
        self._led = 0
        self._joined = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._futures

    def join(self, key: CacheKey) -> tuple[asyncio.Future[ItemOutcome], bool]:
        """Return the future of `key`'s outcome, and whether the caller leads."""
        future = self._futures.get(key)
        if future is not None:
            self._joined += 1
            return future, False
        future = asyncio.get_running_loop().create_future()
        self._futures[key] = future
        self._led += 1
        return future, True

    def settle(self, key: CacheKey, outcome: ItemOutcome) -> None:
        """Give `outcome` to all who wait for `key`; the next to ask leads anew."""
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            future.set_result(outcome)

    def statistics(self) -> FlightStatistics:
        """Return counts for metrics and tests."""
        return FlightStatistics(in_flight=len(self._futures), led=self._led, joined=self._joined)


async def wait(future: asyncio.Future[ItemOutcome]) -> ItemOutcome:
    """Return the shared future's outcome; cancelling this wait leaves the future alone."""
    return await asyncio.shield(future)
