"""Sends commands to the primary that Redis Sentinel names."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from gateway.redis.pipeline import Command, StandaloneClient
from gateway.redis.url import Servers
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive


class SentinelClient(StandaloneClient):
    """Queries the Sentinels before each connection, and reconnects after a `READONLY` error."""

    def __init__(
        self, servers: Servers, *, timeout: float, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
    ) -> None:
        super().__init__(servers.urls[0], timeout=timeout, keepalive=keepalive)
        self._primary = servers.primary
        # Connecting has `timeout` in all: a Sentinel that hangs must leave time for the next.
        each = timeout / (len(servers.addresses) + 1)
        self._sentinels = [
            StandaloneClient(url, timeout=each, keepalive=keepalive)
            for url in servers.sentinel_urls
        ]

    @override
    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        replies = await super().execute(commands)
        if any(isinstance(r, Exception) and str(r).startswith("READONLY") for r in replies):
            await super().aclose()
        return replies

    @override
    async def locate(self) -> tuple[str, int]:
        """Return the host and port of the primary; the next call tries the same Sentinel first.

        Raises:
            OSError: no Sentinel knows the primary.
        """
        for sentinel in list(self._sentinels):
            try:
                (reply,) = await sentinel.execute(
                    [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._primary)]
                )
            except OSError:
                continue
            match reply:
                case [bytes(host), bytes(port)] if host.isascii() and port.isdigit():
                    self._sentinels.remove(sentinel)
                    self._sentinels.insert(0, sentinel)
                    return host.decode(), int(port)
        raise ConnectionError(f"no Sentinel knows a primary `{self._primary}`")

    @override
    async def aclose(self) -> None:
        await super().aclose()
        for sentinel in self._sentinels:
            await sentinel.aclose()
