"""Opens a client for a Redis URL: for one server, for Sentinels or for a cluster."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sluicegate.gateway.redis.cluster import ClusterClient
from sluicegate.gateway.redis.pipeline import Command, Replies, StandaloneClient
from sluicegate.gateway.redis.sentinel import SentinelClient
from sluicegate.gateway.redis.url import read_servers
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive


class PipelinedClient(Protocol):
    """Runs commands. Raises `OSError` if Redis is unreachable.

    The reply to a command that failed is an error object.
    """

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command."""
        ...

    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        """Send commands, and call `on_done` with the replies in a later event-loop iteration.

        If only `execute` can send the commands, send nothing and return `False`.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


def open_client(
    url: str, *, timeout: float, slow: float, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
) -> PipelinedClient:
    """Return a client of the Redis at `url`.

    Connecting takes at most `timeout` seconds, and so does the wait for the replies to a call.

    In a cluster, a call that is slower than `slow` seconds counts as a failure of its node.

    Raises:
        ConfigurationError: the URL names several servers and is invalid.
    """
    servers = read_servers(url)
    if servers is None:
        return StandaloneClient(url, timeout=timeout, keepalive=keepalive)
    if servers.kind == "sentinel":
        return SentinelClient(servers, timeout=timeout, keepalive=keepalive)
    return ClusterClient(servers, timeout=timeout, slow=slow, keepalive=keepalive)
