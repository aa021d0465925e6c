"""Makes Redis clients that fail soon instead of stalling a request."""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.errors import ConfigurationError
from gateway.redis_servers import read_servers


def connect(url: str, *, timeout: float, connections: int = 16) -> Redis:
    """Return a client of the Redis at `url` (`redis://`, `rediss://` or `unix://`).

    Connecting, waiting for a free connection and each read may take `timeout` seconds. Nothing is
    retried: redis-py would repeat a command ten times, and a script that takes tokens or appends
    events must not run twice. Never cancel an await of this client: let a task that nobody cancels
    run the command and wait for that task.

    Raises:
        ConfigurationError: the URL is that of several servers.
    """
    if read_servers(url) is not None:
        raise ConfigurationError("this Redis must be one server, as `redis://host:port/0`")
    pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)
