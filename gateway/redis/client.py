"""Makes Redis clients that fail soon instead of stalling a request."""

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
from redis.exceptions import ConnectionError as RedisConnectionError
from typing_extensions import override

from gateway.errors import ConfigurationError
from gateway.redis.url import read_servers
from gateway.sockets.tcp_keepalive import SHIPPED, TcpKeepalive, discard_at_close

_CONNECT_TIMEOUT = 2.0
"""A longer wait for a lost packet only makes the next attempt later: the kernel sends it ever less
often."""


class _LossAware(AbstractConnection):
    """A connection that tells its loss from a reply that has not come yet.

    Where keep-alive gives up, the error is `ETIMEDOUT`, and so Python's `TimeoutError`. To redis-py
    that is the end of the time a read was given: it returns `None` at once, now and whenever it is
    asked again. The pool asks whether something can be read, and replaces what fails.
    """

    @override
    async def can_read(self) -> bool:
        self._raise_loss()
        return bool(await super().can_read())

    @override
    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        response = await super().read_response(*args, **kwargs)
        if response is None:
            self._raise_loss()
        return response

    def _raise_loss(self) -> None:
        loss = None if self._reader is None else self._reader.exception()
        if loss is not None:
            raise RedisConnectionError(f"the connection was lost: {loss}")


class _KeptAlive(_LossAware):
    """One over TCP that ends as `keepalive` says, and discards what nobody waits for."""

    def __init__(self, *, keepalive: TcpKeepalive, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._keepalive = keepalive

    @override
    async def _connect(self) -> None:
        # The abstract method has a body of nothing, and that of TCP comes before it.
        await super()._connect()  # type: ignore[safe-super,no-untyped-call]
        if self._writer is not None:
            self._keepalive.apply(self._writer.transport)
            discard_at_close(self._writer.transport)


class _TcpConnection(_KeptAlive, Connection):
    pass


class _TlsConnection(_KeptAlive, SSLConnection):
    pass


class _UnixConnection(_LossAware, UnixDomainSocketConnection):
    pass


_LOSS_AWARE: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: _TcpConnection,
    SSLConnection: _TlsConnection,
    UnixDomainSocketConnection: _UnixConnection,
}


def connect(
    url: str,
    *,
    timeout: float,
    connections: int = 16,
    keepalive: TcpKeepalive = SHIPPED,
) -> Redis:
    """Return a client of the Redis at `url` (`redis://`, `rediss://` or `unix://`).

    Waiting for a free connection and each read may take `timeout` seconds, connecting 2. Nothing is
    retried: redis-py would repeat a command ten times, and a script that takes tokens or appends
    events must not run twice. Never cancel an await of this client: let a task that nobody cancels
    run the command and wait for that task.

    Raises:
        ConfigurationError: the URL is that of several servers.
    """
    if read_servers(url) is not None:
        raise ConfigurationError("this Redis must be one server, as `redis://host:port/0`")
    address: dict[str, Any] = dict(parse_url(url))
    kind = address.pop("connection_class", Connection)
    if "path" not in address:
        address["keepalive"] = keepalive
    pool: BlockingConnectionPool = BlockingConnectionPool(
        max_connections=connections,
        connection_class=_LOSS_AWARE[kind],
        **{
            "timeout": timeout,
            "socket_timeout": timeout,
            "socket_connect_timeout": min(timeout, _CONNECT_TIMEOUT),
            "retry": Retry(NoBackoff(), 0),
            **address,
        },
    )
    return Redis.from_pool(pool)
