"""The client's settings, without a server."""

from redis.asyncio import UnixDomainSocketConnection

from sluicegate.gateway.redis.client import connect


def test_nothing_is_retried_and_everything_has_the_timeout() -> None:
    pool = connect("redis://127.0.0.1:1/0", timeout=0.1, connections=3).connection_pool

    assert pool.connection_kwargs["socket_timeout"] == 0.1
    assert pool.connection_kwargs["socket_connect_timeout"] == 0.1
    assert pool.connection_kwargs["retry"].get_retries() == 0
    assert pool.max_connections == 3


def test_a_unix_socket_can_be_named() -> None:
    pool = connect("unix:///run/valkey.sock", timeout=0.1).connection_pool

    assert issubclass(pool.connection_class, UnixDomainSocketConnection)
    assert pool.connection_kwargs["path"] == "/run/valkey.sock"
