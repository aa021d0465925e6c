"""Sends commands to the primary that Redis Sentinel names."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from sluicegate.gateway.redis.locators import sentinel_locator
from sluicegate.gateway.redis.pipeline import Command, StandaloneClient
from sluicegate.gateway.redis.url import Servers
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive


class SentinelClient(StandaloneClient):
    """Runs commands on the primary that the Sentinels name.

    Before each connection, the client asks the Sentinels for the primary. If a server replies with
    `READONLY`, the client reconnects.
    """

    def __init__(
        self, servers: Servers, *, timeout: float, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
    ) -> None:
        super().__init__(servers.urls[0], timeout=timeout, keepalive=keepalive)
        self._primary = sentinel_locator(servers, timeout=timeout, keepalive=keepalive)

    @override
    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        replies = await super().execute(commands)
        if any(isinstance(r, Exception) and str(r).startswith("READONLY") for r in replies):
            await super().aclose()
        return replies

    @override
    async def locate(self) -> tuple[str, int]:
        """Return the host and port of the primary.

        Raises:
            OSError: no Sentinel knows the primary.
        """
        return await self._primary.locate()
