"""Looks up the address of the primary in Redis Sentinel."""

from collections.abc import Sequence

from gateway.redis.pipeline import StandaloneClient
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive


class Sentinels:
    """Queries the Sentinels at `urls`; each may take `timeout` seconds to answer."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        primary: str,
        timeout: float,
        keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
    ) -> None:
        self._primary = primary
        self._clients = [
            StandaloneClient(url, timeout=timeout, keepalive=keepalive) for url in urls
        ]

    async def locate(self) -> tuple[str, int]:
        """Return the host and port of the primary; the next call tries the same Sentinel first.

        Raises:
            OSError: no Sentinel knows the primary.
        """
        for client in list(self._clients):
            try:
                (reply,) = await client.execute(
                    [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._primary)]
                )
            except OSError:
                continue
            found = _address(reply)
            if found is not None:
                self._clients.remove(client)
                self._clients.insert(0, client)
                return found
        raise ConnectionError(f"no Sentinel knows a primary `{self._primary}`")

    async def aclose(self) -> None:
        """Close every connection."""
        for client in self._clients:
            await client.aclose()


def _address(reply: object) -> tuple[str, int] | None:
    match reply:
        case [bytes(host), bytes(port)] if host.isascii() and port.isdigit():
            return host.decode(), int(port)
    return None
