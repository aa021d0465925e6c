"""Finds the server to connect to: at a fixed address, through Sentinel, or by a key's slot."""

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from redis.crc import key_slot

from sluicegate.gateway.redis.cluster import slot_ranges
from sluicegate.gateway.redis.pipeline import Command, StandaloneClient
from sluicegate.gateway.redis.url import Servers
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive

Address = tuple[str, int]


class Locator(Protocol):
    """Finds the server before each connection.

    `latest` is the address that was found last. A connection to another address must be replaced.
    """

    latest: Address | None

    async def locate(self) -> Address:
        """Return the host and the port. Raise `OSError` if no server knows the address."""
        ...


class FixedLocator:
    """Finds a server that has a fixed address."""

    def __init__(self, host: str, port: int) -> None:
        self.latest: Address | None = None
        self._address = host, port

    async def locate(self) -> Address:
        """Return the address."""
        return self._address


class QueryingLocator:
    """Queries the servers at `urls` in turn, beginning with the server that responded last.

    Each query opens a new connection, because an older connection may have died in a failover.
    `parse` gets the reply and the URL of a server. It returns the address in the reply, or `None`
    if the reply has no address.
    """

    def __init__(
        self,
        urls: Sequence[str],
        command: Command,
        parse: Callable[[Any, str], Address | None],
        *,
        timeout: float,
        keepalive: TcpKeepalive,
        failure: str,
    ) -> None:
        self.latest: Address | None = None
        self._urls = list(urls)
        self._command = command
        self._parse = parse
        # Each query gets a part of `timeout`, so that time is left for the other servers if a
        # server hangs. All queries share a TLS context, because creating a context reads the
        # machine's certificates, which takes at least 10 ms.
        self._open = partial(
            StandaloneClient,
            timeout=timeout / (len(self._urls) + 1),
            keepalive=keepalive,
            tls=ssl.create_default_context() if urls[0].startswith("rediss:") else None,
        )
        self._failure = failure

    async def locate(self) -> Address:
        """Return the address in the first valid reply.

        Raises:
            OSError: no server sent a valid reply.
        """
        for url in list(self._urls):
            address = self._parse(await self._query(url), url)
            if address is not None:
                self._urls.remove(url)
                self._urls.insert(0, url)
                self.latest = address
                return address
        raise ConnectionError(self._failure)

    async def _query(self, url: str) -> Any:
        client = self._open(url)
        try:
            (reply,) = await client.execute([self._command])
        except OSError:
            return None
        finally:
            await client.aclose()
        return reply


def sentinel_locator(
    servers: Servers, *, timeout: float, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
) -> QueryingLocator:
    """Return a locator that asks the Sentinels for the address of the primary."""
    return QueryingLocator(
        servers.sentinel_urls,
        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", servers.primary),
        _named_primary,
        timeout=timeout,
        keepalive=keepalive,
        failure=f"no Sentinel knows a primary `{servers.primary}`",
    )


def slot_locator(
    servers: Servers, key: str, *, timeout: float, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
) -> QueryingLocator:
    """Return a locator that asks a cluster for the node that owns the slot of `key`."""
    return QueryingLocator(
        servers.urls,
        ("CLUSTER", "SLOTS"),
        partial(_slot_owner, servers, key_slot(key.encode())),
        timeout=timeout,
        keepalive=keepalive,
        failure=f"no node of the cluster names the owner of the slot of `{key}`",
    )


def _named_primary(reply: Any, _: str) -> Address | None:
    match reply:
        case [bytes(host), bytes(port)] if host.isascii() and port.isdigit():
            return host.decode(), int(port)
    return None


def _slot_owner(servers: Servers, slot: int, reply: Any, url: str) -> Address | None:
    for slots in slot_ranges(reply):
        if slots.first <= slot <= slots.last:
            return slots.host or servers.host_of(url), slots.port
    return None
