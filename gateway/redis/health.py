"""Monitors whether the Redis that stores cached results is reachable.

The worker's readiness depends on the result.
"""

import asyncio
from typing import Self

from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.tasks import PeriodicTask

_INTERVAL = 1.0
_PING_TIMEOUT = 0.5


class RedisHealthMonitor:
    """While its context lasts, pings Redis every `interval` seconds. Closes `client` on exit.

    Cache lookups cannot show whether Redis is reachable. There may be no lookups, and a failed
    lookup looks like a miss.
    """

    def __init__(self, client: PipelinedClient, *, interval: float = _INTERVAL) -> None:
        self._client = client
        self._pinging = PeriodicTask(
            self._ping, interval=interval, failure="the ping of Redis failed"
        )
        self.is_reachable = True
        """Whether Redis responded to the last ping."""

    async def __aenter__(self) -> Self:
        await self._pinging.__aenter__()
        self._pinging.wake()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._pinging.__aexit__(*exc_info)
        await self._client.aclose()

    async def _ping(self) -> None:
        self.is_reachable = await responds_to_ping(self._client)


async def responds_to_ping(client: PipelinedClient) -> bool:
    """Return whether Redis, or any node of a cluster, responds to a ping in time."""
    try:
        async with asyncio.timeout(_PING_TIMEOUT):
            (reply,) = await client.execute([(b"PING",)])
    except OSError:
        return False
    return not isinstance(reply, Exception)
