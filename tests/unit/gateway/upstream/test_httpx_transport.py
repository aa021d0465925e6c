"""The client over httpx is chosen by the document, and goes through proxies."""

import asyncio

import msgspec
import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.upstream.base import CallFailed
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.wire.protocol import ServingState
from testing.stub_backend import StubBackend
from tests.support.dispatching import endpoint, endpoint_of, state
from tests.support.raw_server import RawServer

pytestmark = pytest.mark.anyio

OVER_HTTPX = RoutingConfig(client="httpx")


async def test_a_reload_changes_the_client_and_back() -> None:
    async with StubBackend() as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        used = []
        for routing in (RoutingConfig(), OVER_HTTPX, OVER_HTTPX, RoutingConfig()):
            client.configure([target], routing)
            await client.state(target, time_limit=5.0)
            used.append(stub.connections)

    assert used == [1, 2, 3, 3]


async def test_calls_go_through_the_proxy_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        body = msgspec.msgpack.encode(state())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    async with RawServer(proxy).open() as server, HttpBackendClient() as client:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        target = endpoint("eu-0", url="http://backend.example:9000")
        client.configure([target], OVER_HTTPX)
        found: ServingState = await client.state(target, time_limit=5.0)

    (head,) = heads
    assert head.startswith(b"GET http://backend.example:9000/")
    assert found.ready


async def test_a_proxy_that_is_away_makes_backends_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with StubBackend() as stub:
        gone = stub.url
    monkeypatch.setenv("HTTP_PROXY", gone)
    async with HttpBackendClient() as client:
        target = endpoint("eu-0", url="http://backend.example:9000")
        client.configure([target], OVER_HTTPX)
        with pytest.raises(CallFailed, match="no connection"):
            await client.state(target, time_limit=5.0)
