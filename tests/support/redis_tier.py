"""Builds the Redis tier of the result cache for tests."""

from sluicegate.gateway.cache.redis_tier import RedisTier
from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from sluicegate.gateway.redis.pipeline import StandaloneClient
from testing.waiting import until
from tests.support.clock import Clock


def make_tier(
    url: str,
    *,
    timeout: float = 5.0,
    jitter: float = 0.0,
    lease: float = 0.25,
    monotonic: Clock | None = None,
    breaker: CircuitBreaker | None = None,
) -> RedisTier:
    return RedisTier(
        reads=StandaloneClient(url, timeout=timeout),
        writes=StandaloneClient(url, timeout=timeout),
        timeout=timeout,
        ttl_jitter=jitter,
        lease=lease,
        monotonic=monotonic or Clock(),
        random=lambda: 1.0,
        breaker=breaker,
    )


async def written(tier: RedisTier, count: int) -> None:
    await until(lambda: tier.statistics().written == count, what=f"{count} entries written")
