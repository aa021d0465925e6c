"""Runs a Redis that fails on demand in each way that the cache's or state's Redis can fail."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from testing.redis_deployments import sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import wait_until
from tests.support.delaying_proxy import DelayingProxy

FAULTS = ("stopped", "slow by 200 ms", "full", "restarted", "failing over")
OPENING = tuple(fault for fault in FAULTS if fault != "full")
"""Faults that open the cache's breaker: a full Redis refuses writes and answers reads."""
STATE_FAULTS = tuple(fault for fault in FAULTS if fault != "failing over")
"""Faults of a state Redis that is one server. The load test of Sentinels covers failover."""
STATE_OPENING = tuple(fault for fault in STATE_FAULTS if fault not in {"slow by 200 ms", "full"})
"""Faults that open the limiter's breaker.

The answer of a late Redis still counts. A full Redis refuses a script whose first write needs
memory, and runs any other, so that failures need not follow each other.
"""


class FaultyRedis(msgspec.Struct, frozen=True):
    """A Redis: `begin` injects its fault, and `end` ends it and waits until Redis answers again."""

    url: str
    begin: Callable[[], None]
    end: Callable[[], None]


@asynccontextmanager
async def failing_redis(fault: str, *arguments: str) -> AsyncIterator[FaultyRedis]:
    """Run a healthy Redis, and yield it with its fault.

    A Redis of one server is started with `arguments`.
    """
    async with AsyncExitStack() as stack:
        if fault == "failing over":
            watched = stack.enter_context(sentinel_deployment())
            yield FaultyRedis(
                watched.url,
                watched.primary.kill,
                lambda: wait_until(watched.has_failed_over, within=60, what="a new primary"),
            )
            return
        valkey = stack.enter_context(Valkey(*arguments))
        if fault == "slow by 200 ms":
            delay = [0.0]
            proxy = DelayingProxy(str(valkey.socket), delay=lambda: delay[0])
            await stack.enter_async_context(proxy)
            yield FaultyRedis(
                proxy.url, lambda: delay.__setitem__(0, 0.2), lambda: delay.__setitem__(0, 0.0)
            )
        elif fault == "stopped":
            yield FaultyRedis(valkey.url, valkey.pause, valkey.resume)
        elif fault == "full":
            valkey.configure("maxmemory-policy", "noeviction")
            yield FaultyRedis(
                valkey.url,
                lambda: valkey.configure("maxmemory", "1"),
                lambda: valkey.configure("maxmemory", "0"),
            )
        else:
            yield FaultyRedis(valkey.url, valkey.kill, valkey.start)
