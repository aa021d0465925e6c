"""Creates redis-py clients whose calls fail after a timeout, and so never block a request."""

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    ConnectionError as RedisConnectionError,
    MovedError,
    ReadOnlyError,
    ResponseError,
)
from typing_extensions import override

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.redis.locators import FixedLocator, Locator, sentinel_locator, slot_locator
from sluicegate.gateway.redis.url import Servers, read_servers
from sluicegate.gateway.sockets.connecting import Connector
from sluicegate.gateway.sockets.tcp_keepalive import (
    DEFAULT_KEEPALIVE,
    TcpKeepalive,
    discard_at_close,
)

_CONNECT_TIMEOUT = 2.0
"""The longest wait for a new connection, in seconds. A longer wait is useless, because after a lost
packet, the kernel retransmits at growing intervals, and a new attempt is faster."""
_LOST_ROLE = (ReadOnlyError, MovedError, ClusterDownError)
_LOST_ROLE_WORDS = ("READONLY", "NOREPLICAS")
"""Words in the errors of servers that have lost their role. They identify errors that have no class
of their own, or that come from a script."""


class _LossDetectingConnection(AbstractConnection):
    """Detects lost connections, which redis-py can mistake for replies that have not arrived yet.

    If TCP keep-alive fails, the error is `ETIMEDOUT`, which Python raises as `TimeoutError`.
    redis-py takes this error for a read timeout, and every later read returns `None` immediately. A
    connection to a server that has lost its role also counts as lost, because another server has
    the keys. The pool calls `can_read`, and replaces the connection if `can_read` raises an error.
    """

    @override
    async def can_read(self) -> bool:
        self._raise_loss()
        return bool(await super().can_read())

    @override
    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            response = await super().read_response(*args, **kwargs)
        except ResponseError as error:
            if _is_lost_role(error):
                await self.disconnect(nowait=True)
                raise RedisConnectionError(f"the server lost its role: {error}") from error
            raise
        if response is None:
            self._raise_loss()
        return response

    def _raise_loss(self) -> None:
        loss = None if self._reader is None else self._reader.exception()
        if loss is not None:
            raise RedisConnectionError(f"the connection was lost: {loss}")


def _is_lost_role(error: ResponseError) -> bool:
    """Return whether `error` shows that the server may no longer have the keys."""
    text = str(error)
    return isinstance(error, _LOST_ROLE) or any(word in text for word in _LOST_ROLE_WORDS)


class _KeepaliveConnection(_LossDetectingConnection):
    """Sets `keepalive` on TCP connections. Discards unsent commands when a connection closes.

    Each time it connects, `locator` returns the server, and `connector` connects to it. The
    connector is needed because redis-py itself would try the addresses of a name one after the
    other.
    """

    host: str
    port: int

    def __init__(
        self, *, locator: Locator, keepalive: TcpKeepalive, connector: Connector, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._locator = locator
        self._keepalive = keepalive
        self._connector = connector

    @override
    def _raise_loss(self) -> None:
        super()._raise_loss()
        # All connections to the former server must be replaced, because a server that hangs does
        # not close them, and each of them would cost another timeout.
        if self._locator.latest not in (None, (self.host, self.port)):
            raise RedisConnectionError("another server has the keys now")

    def _connection_arguments(self) -> dict[str, Any]:
        # The arguments of the TCP or TLS class, but with a connected socket instead of host and
        # port.
        arguments = dict(super()._connection_arguments())  # type: ignore[misc]
        del arguments["host"], arguments["port"]
        if "ssl" in arguments:
            arguments["server_hostname"] = self.host
        return {**arguments, "sock": self._socket}

    @override
    async def _connect(self) -> None:
        bound = self.socket_connect_timeout
        async with asyncio.timeout(bound):
            self.host, self.port = await self._locator.locate()
            self._socket = await self._connector.connect(
                self.host, self.port, connect_timeout=bound
            )
        # The abstract class's method is empty. But the TCP class comes first in the method
        # resolution order, so its method is called.
        await super()._connect()  # type: ignore[safe-super,no-untyped-call]
        if self._writer is not None:
            self._keepalive.apply(self._writer.transport)
            discard_at_close(self._writer.transport)


class _TcpConnection(_KeepaliveConnection, Connection):
    pass


class _TlsConnection(_KeepaliveConnection, SSLConnection):
    pass


class _UnixConnection(_LossDetectingConnection, UnixDomainSocketConnection):
    pass


_CONNECTION_CLASSES: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: _TcpConnection,
    SSLConnection: _TlsConnection,
    UnixDomainSocketConnection: _UnixConnection,
}


def connect(
    url: str,
    *,
    timeout: float,
    key: str = "",
    connections: int = 16,
    keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
) -> Redis:
    """Return a client of the Redis at `url`, which is one server, Sentinels or a cluster.

    With Sentinels, the client connects to the primary that they name. In a cluster, the client
    connects to the node that owns the slot of `key`, and cannot reach keys on other nodes.

    Waiting for a free connection takes at most `timeout` seconds, and so does each read. Connecting
    takes at most `timeout` seconds or 2 seconds, whichever is less. No command is retried, because
    a script that takes units or appends events must not run twice.

    If a server no longer has the keys, for example after a failover, the client closes the
    connection. The next connection goes to the server that has the keys.

    Never cancel a call of this client. Run the command in a task that is not cancelled, and wait
    for the task.

    Raises:
        ConfigurationError: `url` is an invalid URL of Sentinels or of a cluster, or is the URL of a
            cluster although `key` is empty.
    """
    servers = read_servers(url)
    address: dict[str, Any] = dict(parse_url(url if servers is None else servers.urls[0]))
    kind = address.pop("connection_class", Connection)
    bound = min(timeout, _CONNECT_TIMEOUT)
    if "path" not in address:
        locator: Locator
        if servers is None:
            locator = FixedLocator(address.get("host", "localhost"), address.get("port", 6379))
        else:
            locator = _locator(servers, key, timeout=bound, keepalive=keepalive)
        address |= {"locator": locator, "keepalive": keepalive, "connector": Connector()}
    pool: BlockingConnectionPool = BlockingConnectionPool(
        max_connections=connections,
        connection_class=_CONNECTION_CLASSES[kind],
        **{
            "timeout": timeout,
            "socket_timeout": timeout,
            "socket_connect_timeout": bound,
            "retry": Retry(NoBackoff(), 0),
            **address,
        },
    )
    return Redis.from_pool(pool)


def _locator(servers: Servers, key: str, *, timeout: float, keepalive: TcpKeepalive) -> Locator:
    if servers.kind == "sentinel":
        return sentinel_locator(servers, timeout=timeout, keepalive=keepalive)
    if not key:
        raise ConfigurationError(
            "this Redis cannot be a cluster; use a single server or `redis-sentinel://`"
        )
    return slot_locator(servers, key, timeout=timeout, keepalive=keepalive)
