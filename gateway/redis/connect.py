"""Opens connections to the Redis of a URL: one server, a Sentinel primary or a cluster."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from typing_extensions import override

from gateway.redis.cluster import ClusterClient
from gateway.redis.pipeline import Command, Replies, StandaloneClient
from gateway.redis.sentinel import Sentinels
from gateway.redis.url import Servers, read_servers
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive


class PipelinedClient(Protocol):
    """Runs commands; raises `OSError` when Redis is unreachable, and returns error replies."""

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command."""
        ...

    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        """Send commands, and call `on_done` with the replies in a later event-loop iteration.

        Return `False`, and send nothing, where only `execute` can send them.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class _SentinelClient(StandaloneClient):
    """Connects to the primary that Sentinel names, and reconnects after a `READONLY` error."""

    def __init__(self, servers: Servers, *, timeout: float, keepalive: TcpKeepalive) -> None:
        # Connecting has `timeout` in all: a Sentinel that hangs must leave time for the next.
        each = timeout / (len(servers.addresses) + 1)
        self._sentinels = Sentinels(
            servers.sentinel_urls, primary=servers.primary, timeout=each, keepalive=keepalive
        )
        super().__init__(
            servers.urls[0],
            timeout=timeout,
            locate=self._sentinels.locate,
            keepalive=keepalive,
        )

    @override
    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        replies = await super().execute(commands)
        if any(isinstance(r, Exception) and str(r).startswith("READONLY") for r in replies):
            await super().aclose()
        return replies

    @override
    async def aclose(self) -> None:
        await super().aclose()
        await self._sentinels.aclose()


def open_client(
    url: str, *, timeout: float, slow: float, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
) -> PipelinedClient:
    """Return a pipe to the Redis at `url`; everything may take `timeout` seconds.

    For a cluster, calls slower than `slow` seconds count towards opening a node's breaker.

    Raises:
        ConfigurationError: the URL names several servers and is invalid.
    """
    servers = read_servers(url)
    if servers is None:
        return StandaloneClient(url, timeout=timeout, keepalive=keepalive)
    if servers.kind == "sentinel":
        return _SentinelClient(servers, timeout=timeout, keepalive=keepalive)
    return ClusterClient(servers, timeout=timeout, slow=slow, keepalive=keepalive)
