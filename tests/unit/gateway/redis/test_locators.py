"""Queries for the address of a server."""

import ssl

import pytest

from sluicegate.gateway.redis.locators import sentinel_locator
from sluicegate.gateway.redis.url import read_servers
from testing.ports import free_port

pytestmark = pytest.mark.anyio


async def test_queries_over_tls_have_one_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one reads the system's certificates, in the event loop of a worker."""
    contexts: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def counted() -> ssl.SSLContext:
        contexts.append(create())
        return contexts[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    url = f"rediss-sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/0?primary=state"
    servers = read_servers(url)
    assert servers is not None
    locator = sentinel_locator(servers, timeout=5.0)

    for _ in range(2):
        with pytest.raises(OSError, match="no Sentinel knows"):
            await locator.locate()

    assert len(contexts) == 1
