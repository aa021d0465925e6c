"""Locates the server to connect to: at an address, by Sentinel, or by the slot of a key."""

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from redis.crc import key_slot

from gateway.redis.cluster import slot_ranges
from gateway.redis.pipeline import Command, StandaloneClient
from gateway.redis.url import Servers
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive

Address = tuple[str, int]


class Locator(Protocol):
    """Locates a server before each connection to it.

    `latest` is the address that was located last: a connection to another one is to be replaced.
    """

    latest: Address | None

    async def locate(self) -> Address:
        """Return host and port; raises `OSError` where no server names them."""
        ...


class FixedLocator:
    """Locates a server that has one address."""

    def __init__(self, host: str, port: int) -> None:
        self.latest: Address | None = None
        self._address = host, port

    async def locate(self) -> Address:
        """Return the address."""
        return self._address


class QueryingLocator:
    """Queries the servers at `urls` in turn, beginning with the one that answered last.

    Each query has a connection of its own: one that was kept since the last failover may be dead.
    `parse` returns the address in a reply of the server at a URL, `None` where there is none.
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
        # All have `timeout` together: a server that hangs must leave time for the next. One context
        # for all queries: to make one reads the system's certificates, for 10 ms and more.
        self._open = partial(
            StandaloneClient,
            timeout=timeout / (len(self._urls) + 1),
            keepalive=keepalive,
            tls=ssl.create_default_context() if urls[0].startswith("rediss:") else None,
        )
        self._failure = failure

    async def locate(self) -> Address:
        """Return the address that the first server with a valid reply names.

        Raises:
            OSError: none does.
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
    """Return a locator of the primary that the Sentinels name."""
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
    """Return a locator of the node of a cluster that owns the slot of `key`."""
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
