"""Builds rules, charges and rate limiters for tests."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import accumulate
from typing import Self

from redis.asyncio import Redis
from typing_extensions import override

from sluicegate.gateway.rate_limit.base import (
    Charge,
    Decision,
    LimiterStatistics,
    RegionalLimits,
    RepeatedCharge,
)
from sluicegate.gateway.rate_limit.memory import MemoryRateLimiter
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.rate_limit.repeated_charges import DelegatedCharge
from sluicegate.gateway.rate_limit.script import TAKE
from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from sluicegate.gateway.types import Rule
from tests.support.clock import Clock

_CLOCK_KEY = "test:now"


def rule(
    capacity: int = 100, window: float = 3_600.0, *, name: str = "minute", unit: str = "requests"
) -> Rule:
    """Return a rule whose bucket hardly refills while a test runs."""
    return Rule(name=name, unit=unit, capacity=capacity, window=window)


def charge(
    amount: int = 1,
    *,
    of: Rule | None = None,
    bucket: str = "",
    is_reserved: bool = False,
) -> Charge:
    """Return a charge on a bucket of tenant `acme`'s."""
    of = of or rule()
    return Charge(
        rule=of, bucket=bucket or f"rl:{{acme}}:t:{of.name}", amount=amount, is_reserved=is_reserved
    )


class LocalRateLimiter(MemoryRateLimiter):
    """A `RateLimiter` that decides everything without Redis."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        super().__init__(monotonic=monotonic)
        self._counts = LimiterStatistics()

    @override
    def try_admit(self, charges: Sequence[Charge]) -> Decision:
        decision = super().try_admit(charges)
        if decision.allowed:
            self._counts.admitted_by_share += 1
        else:
            self._counts.refused += 1
        self._counts.shadowed += len(decision.shadowed)
        return decision

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide at once, as `try_admit`."""
        return self.try_admit(charges)

    def repeated_charge(self, charges: Sequence[Charge]) -> RepeatedCharge:
        """Return an object that takes `charges` each time it is called."""
        return DelegatedCharge(charges, try_admit=self.try_admit)

    def statistics(self) -> LimiterStatistics:
        """Return how many were admitted and refused."""
        return self._counts


class WorkerFleet:
    """Workers on one Redis whose script reads its time from a key, which `advance` sets.

    Its context ends the workers' calls, which would otherwise open a connection of a client that
    the test has closed. The limiters are not entered, so that leases go back only when a test says
    so. `shares`, one for each worker, are those of their region.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        workers: int,
        local_share: float = 0.1,
        failures: int = 5,
        clock: Clock | None = None,
        shares: Sequence[RegionalLimits] = (),
    ) -> None:
        self.clock = clock or Clock()
        self._redis = redis
        self.workers = [
            RedisRateLimiter(
                redis=redis,
                holder=f"worker {number}",
                local_share=local_share,
                monotonic=self.clock,
                breaker=CircuitBreaker(failures=failures),
                wall=self.clock,
                shares=shares[number] if shares else None,
                # However busy the machine is, Redis decides.
                patience=60.0,
            )
            for number in range(workers)
        ]
        script = TAKE.replace("redis.call('TIME')", f"redis.call('LRANGE', '{_CLOCK_KEY}', 0, -1)")
        assert script != TAKE
        for worker in self.workers:
            worker._script = redis.register_script(script)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for worker in self.workers:
            await worker._tasks.__aexit__(*exc_info)

    async def advance(self, seconds: float) -> None:
        """Let time pass, for the workers and for Redis."""
        self.clock.advance(seconds)
        await self.tell_time()

    async def tell_time(self) -> None:
        """Let Redis know what time it is."""
        whole, fraction = divmod(self.clock(), 1)
        async with self._redis.pipeline() as pipeline:
            _ = pipeline.delete(_CLOCK_KEY)
            _ = pipeline.rpush(_CLOCK_KEY, int(whole), int(fraction * 1_000_000))
            await pipeline.execute()


class Fleets(AsyncExitStack):
    """Makes fleets on `redis`, and ends their contexts with its own."""

    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis = redis

    def make(
        self, *, workers: int, clock: Clock | None = None, shares: Sequence[RegionalLimits] = ()
    ) -> WorkerFleet:
        """Return a fleet; see `WorkerFleet`."""
        fleet = WorkerFleet(self._redis, workers=workers, clock=clock, shares=shares)
        self.push_async_exit(fleet)
        return fleet


def most_over_the_limit(admitted: list[tuple[float, int]], of: Rule) -> float:
    """Return by how many units the worst of all windows is over capacity and refill (or under: <0).

    `admitted` are times and units, in order of time.
    """
    totals = [0, *accumulate(units for _, units in admitted)]
    refill = of.capacity / of.window
    return max(
        totals[last + 1] - totals[first] - of.capacity - refill * (end - begin)
        for first, (begin, _) in enumerate(admitted)
        for last, (end, _) in enumerate(admitted)
        if last >= first
    )
