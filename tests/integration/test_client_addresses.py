"""Connections by the address of their client, and proxies that name it, over real sockets."""

import asyncio
import ssl
from pathlib import Path

import pytest

from sluicegate.gateway.http.edge import ListenerEdge, ListenerTls
from sluicegate.gateway.sockets.networks import Networks
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from testing.certificates import Authority
from testing.waiting import until
from tests.support.edge import served

pytestmark = pytest.mark.anyio
LOOPBACK = Networks("127.0.0.0/8")
ELSEWHERE = Networks("10.0.0.0/8")
HEADER = b"PROXY TCP4 203.0.113.9 127.0.0.1 4711 443\r\n"
NAMED = b"x-forwarded-for: 6.6.6.6, 203.0.113.9\r\n"
WAITING = NAMED + b"x-wait: 1\r\n"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of a gateway's processes, whose TLS is its own."""
    return "asyncio", {"use_uvloop": True}


async def test_a_trusted_proxy_names_the_client_of_each_request() -> None:
    async with served(ListenerEdge(trusted=LOOPBACK)) as running, running.connect() as proxy:
        named, unnamed = await proxy.ask(NAMED), await proxy.ask()

    assert (named.body, unnamed.body) == ("http 203.0.113.9", "http 127.0.0.1")


async def test_nobody_else_does() -> None:
    edge = ListenerEdge(trusted=ELSEWHERE, proxy_protocol=True)
    async with served(edge) as running:
        async with running.connect() as client:
            answer = await client.ask(NAMED + b"forwarded: for=6.6.6.6\r\n")
        async with running.connect(prefix=HEADER) as client:
            refused = await client.ask()

    assert answer.body == "http 127.0.0.1"
    assert refused.status == 400


async def test_the_header_of_a_proxy_comes_before_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)
    edge = ListenerEdge(tls=ListenerTls(authority.server()), trusted=LOOPBACK, proxy_protocol=True)
    async with served(edge) as running, running.connect(context, prefix=HEADER) as client:
        answer = await client.ask(NAMED)

    assert answer.body == "https 203.0.113.9"


@pytest.mark.parametrize(
    "prefix", [b"", b"PROXY TCP4 nobody\r\n", b"\r\n\r\n\0\r\nQUIT\n\x55\0\0\0"]
)
async def test_a_trusted_proxy_must_send_its_header(prefix: bytes) -> None:
    edge = ListenerEdge(trusted=LOOPBACK, proxy_protocol=True)
    timeouts = ConnectionTimeouts(head=0.3)
    async with served(edge, timeouts=timeouts) as running:
        async with running.connect(prefix=prefix or b"GET / HTTP/1.1\r\n\r\n") as client:
            assert await client.ends()
        async with running.connect(prefix=b"PROXY TCP4 20") as slow:
            assert await slow.ends()


async def test_an_address_has_so_many_connections_and_then_is_told_what_to_do() -> None:
    edge = ListenerEdge(per_address=2)
    async with served(edge) as running:
        async with running.connect() as first, running.connect() as second:
            assert [(await one.ask()).status for one in (first, second)] == [200, 200]
            async with running.connect() as third:
                refused = await third.answer()
                assert await third.ends()
        await until(lambda: not len(edge.counts))
        async with running.connect() as again:
            answer = await again.ask()

    assert refused.status == 429
    assert "retry-after: 1\r\n" in refused.head
    assert "keep connections open" in refused.body
    assert answer.status == 200


async def test_clients_behind_the_proxy_protocol_are_counted_apart() -> None:
    edge = ListenerEdge(trusted=LOOPBACK, proxy_protocol=True, per_address=1)
    other = HEADER.replace(b"113.9", b"113.8")
    async with (
        served(edge) as running,
        running.connect(prefix=HEADER) as first,
        running.connect(prefix=other) as second,
    ):
        assert (await first.ask()).status == (await second.ask()).status == 200
        async with running.connect(prefix=HEADER) as third:
            assert (await third.answer()).status == 429


async def test_requests_under_way_count_as_connections_of_whom_a_proxy_names() -> None:
    edge = ListenerEdge(trusted=LOOPBACK, per_address=1)
    async with served(edge) as running:
        async with running.connect() as first, running.connect() as second:
            waiting = asyncio.create_task(first.ask(WAITING))
            await until(lambda: len(edge.counts) == 1)
            refused = await second.ask(NAMED)
            async with running.connect() as third:
                other = await third.ask(b"x-forwarded-for: 203.0.113.8\r\n")
            running.resumed.set()
            answers = [await waiting, await first.ask(NAMED), await first.ask(NAMED)]
        async with running.connect() as left:
            running.resumed.clear()
            left.writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n" + WAITING + b"\r\n")
            await until(lambda: len(edge.counts) == 1)
        running.resumed.set()  # what was sent in full is answered
        await until(lambda: not len(edge.counts))

    assert (refused.status, other.status) == (429, 200)
    assert [one.status for one in answers] == [200, 200, 200]


async def test_a_request_that_is_refused_for_its_head_is_not_under_way() -> None:
    edge = ListenerEdge(trusted=LOOPBACK, per_address=1)
    async with served(edge) as running, running.connect() as proxy:
        refused = await proxy.ask(NAMED + b"host: twice\r\n")
        counted = len(edge.counts)

    assert (refused.status, counted) == (400, 0)


@pytest.mark.parametrize(
    "prefix",
    [b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0"],
)
async def test_a_connection_of_nobody_named_is_its_proxys_whatever_its_requests_say(
    prefix: bytes,
) -> None:
    edge = ListenerEdge(trusted=LOOPBACK, proxy_protocol=True, per_address=1)
    async with served(edge) as running, running.connect(prefix=prefix) as first:
        answer = await first.ask(NAMED)
        async with running.connect(prefix=prefix) as second:  # probes of the proxy's own
            assert (await second.ask()).status == 200

    assert answer.body == "http 127.0.0.1"
