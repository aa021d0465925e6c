"""Opens a connection to whatever Redis a URL names: one server, Sentinel's primary, a cluster."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from typing_extensions import override

from gateway.redis.cluster import ClusterPipe
from gateway.redis.pipeline import Command, RedisPipe, Replies
from gateway.redis.sentinel import Sentinels
from gateway.redis.url import Servers, read_servers
from gateway.sockets.tcp_keepalive import SHIPPED, TcpKeepalive


class Pipe(Protocol):
    """Runs commands; raises `OSError` when Redis cannot be asked, replies with its errors."""

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command."""
        ...

    def ask(self, commands: Sequence[Command], told: Callable[[Replies], object]) -> bool:
        """Call `told` once, in a later turn, with the replies; `False` where only `execute` can."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class _PrimaryPipe(RedisPipe):
    """A pipe to the primary that Sentinel names; looks for another when it is told `READONLY`."""

    def __init__(self, servers: Servers, *, timeout: float, keepalive: TcpKeepalive) -> None:
        # Connecting has `timeout` in all: a Sentinel that hangs must leave time for the next.
        share = timeout / (len(servers.addresses) + 1)
        self._sentinels = Sentinels(
            servers.sentinel_urls, primary=servers.primary, timeout=share, keepalive=keepalive
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


def open_pipe(url: str, *, timeout: float, slow: float, keepalive: TcpKeepalive = SHIPPED) -> Pipe:
    """Return a pipe to the Redis at `url`; everything may take `timeout` seconds.

    A node of a cluster that takes longer than `slow` seconds is soon left alone for a while.

    Raises:
        ConfigurationError: the URL is that of several servers and cannot be read.
    """
    servers = read_servers(url)
    if servers is None:
        return RedisPipe(url, timeout=timeout, keepalive=keepalive)
    if servers.kind == "sentinel":
        return _PrimaryPipe(servers, timeout=timeout, keepalive=keepalive)
    return ClusterPipe(servers, timeout=timeout, slow=slow, keepalive=keepalive)
