"""Peers that do not read keep neither memory nor others' answers, on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.http.server import open_listener, serve
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.gateway.telemetry.edge_metrics import EdgeMetrics
from testing.raw_http import Connection, post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from tests.support.worker import classify, running_worker

pytestmark = pytest.mark.anyio
_MIB = 1024 * 1024
_MORE_THAN_SOCKETS_HOLD = 16 * _MIB
_LIMIT = 64 * _MIB
_LARGE = b"GET /large HTTP/1.1\r\nhost: h\r\n\r\n"
_SMALL = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"


async def app(scope: Any, _receive: Any, send: Any) -> None:
    """Answer `/large` at length in one message, everything else shortly."""
    body = bytes(_MORE_THAN_SOCKETS_HOLD) if scope["path"] == "/large" else b"ok"
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Listener:
    """A listener whose unsent answers have a bound of `_LIMIT` bytes."""

    def __init__(self) -> None:
        self.socket = open_listener("127.0.0.1", 0, None, setting="the port")
        self.port: int = self.socket.getsockname()[1]
        self.unsent = UnsentAnswers(_LIMIT, clock=asyncio.get_running_loop().time)
        self.registry = CollectorRegistry()

    def closed(self, reason: str) -> float:
        """Return how many connections were closed for a reason."""
        labels = {"listener": "customers", "reason": reason}
        return self.registry.get_sample_value("sluicegate_closed_readers_total", labels) or 0.0


@pytest.fixture
async def listener(anyio_backend: str) -> AsyncIterator[Listener]:
    stop, one = asyncio.Event(), Listener()
    edge = ListenerEdge(metrics=EdgeMetrics(one.registry))
    serving = asyncio.create_task(
        serve(app, one.socket, drain=1.0, stop=stop, edge=edge, unsent=one.unsent)
    )
    one.socket.listen()
    yield one
    stop.set()
    await serving


async def test_answers_that_nobody_reads_stay_within_their_bound(listener: Listener) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(20):
            connection = await stack.enter_async_context(Connection(listener.port))
            await connection.send(_LARGE)
            assert (await connection.head())[0] == 200
            assert listener.unsent.statistics().unsent_bytes <= _LIMIT
        async with Connection(listener.port) as reading:
            await reading.send(_SMALL, _LARGE)
            small, large = await reading.response(), await reading.response()

        assert (small.body, len(large.body)) == (b"ok", _MORE_THAN_SOCKETS_HOLD)
        # Each one that was closed made room for another: the others are as the system holds them.
        assert listener.closed("full") >= 14


async def test_peers_that_read_nothing_hold_up_nobody_else(tmp_path: Any) -> None:
    texts = ["x" * 100_000 for _ in range(60)]
    many = classify(*[f"{number} {text}" for number, text in enumerate(texts)])
    first, later = (
        post("/v1/classify", many).replace(
            b"\r\n\r\n", b"\r\nx-request-timeout: %d\r\n\r\n" % seconds, 1
        )
        for seconds in (100, 1)
    )
    with Valkey() as server:
        # Of this a quarter is for answers: two of 6 MB, with what they are made of.
        own = {"memory_limit_bytes": 4 * 32 * _MIB}
        async with (
            StubBackend() as stub,
            running_worker(tmp_path, server.url, [stub], own=own) as worker,
            AsyncExitStack() as stack,
        ):
            heads = []
            for request in (first, *([later] * 7)):
                connection = await stack.enter_async_context(worker.connect())
                await connection.send(request)
                heads.append(await connection.head())
                assert worker.parts.unsent.statistics().unsent_bytes <= 32 * _MIB
            async with worker.connect() as other:
                await other.send(post("/v1/classify", classify("a")))
                hit = await other.response()
    statuses = [status for status, _ in heads]
    assert hit.status == 200
    assert statuses[0] == 200
    assert set(statuses) <= {200, 503, 504}
    assert all("retry-after" in headers for status, headers in heads if status == 503)
