"""What the HTTP client sends, and that it gives back what it took."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import msgspec
import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream import http
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.gateway.upstream.httpx_transport import HttpxTransport
from sluicegate.gateway.upstream.transport import BackendTransport
from sluicegate.wire.protocol import TOKEN_HEADER, Call, CallItem, Done, Failed, Report, Task
from testing.stub_backend import (
    Reply,
    StubBackend,
    answer,
    answer_when,
    echo,
    hang,
)
from testing.waiting import until
from tests.support.dispatching import call_backend, endpoint, endpoint_of, state

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[BackendTransport, HttpxTransport], ids=["native", "httpx"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BackendTransport", request.param)


def call_of(body: object = "a text", *, revision: str = "aaaaaaaaaaaa") -> Call:
    item = CallItem(body=msgspec.msgpack.encode(body), remaining=5.0, scope="tenant-a")
    return Call(
        model="stub",
        revision=revision,
        profile="fp32",
        task=Task.CLASSIFY,
        parameters=b"\x80",
        items=[item],
    )


async def send(
    client: HttpBackendClient,
    target: Endpoint,
    *,
    call: Call | None = None,
    received: list[Done | Failed] | None = None,
    idle_timeout: float = 10.0,
) -> Report:
    kept: list[Done | Failed] = [] if received is None else received
    return await call_backend(
        client,
        target,
        call or call_of(),
        deadline=asyncio.get_running_loop().time() + 20.0,
        idle_timeout=idle_timeout,
        receive=kept.extend,
    )


async def test_the_token_travels_as_a_header() -> None:
    async with StubBackend() as stub, HttpBackendClient(token="sesame") as client:
        await send(client, endpoint_of(stub))

    (headers,) = stub.headers
    assert headers[TOKEN_HEADER] == "sesame"


async def test_a_backend_may_live_under_a_path() -> None:
    async with StubBackend(path="/zone/b") as stub, HttpBackendClient() as client:
        for url in (stub.url, f"{stub.url}/"):
            await send(client, endpoint("stub", url=url))

    assert stub.url.endswith("/zone/b")
    assert len(stub.calls) == 2


@pytest.mark.parametrize("transport", [BackendTransport], indirect=True)
async def test_connections_are_kept_for_the_next_call() -> None:
    async with StubBackend() as stub, HttpBackendClient() as client:
        for _ in range(5):
            await send(client, endpoint_of(stub))

    assert stub.connections == 1


@pytest.mark.parametrize("transport", [BackendTransport], indirect=True)
async def test_an_answer_that_came_during_a_pause_of_this_process_is_read() -> None:
    loop, answered = asyncio.get_running_loop(), threading.Event()
    body = msgspec.msgpack.encode(state("stub"))

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as requests:
            for _ in range(2):
                while requests.readline() != b"\r\n":
                    pass
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
                connection.sendall(body)
                answered.set()

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(serve, server)
        target = endpoint("stub", url=f"http://127.0.0.1:{server.getsockname()[1]}")
        async with HttpBackendClient() as client:
            await client.state(target, time_limit=60.0)
            answered.clear()
            probing = asyncio.create_task(client.state(target, time_limit=0.0))
            # The first iteration begins the probe's own task, and the second one sends the probe.
            loop.call_soon(loop.call_soon, answered.wait, 60.0)
            found = await probing
        serving.result()

    assert found.backend_id == "stub"


async def test_calls_of_a_backend_at_a_time_are_bounded() -> None:
    gate = asyncio.Event()
    async with StubBackend(behaviour=answer_when(gate)) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        client.configure([target], RoutingConfig(max_calls_per_backend=4))

        unlike = [call_of(revision=f"{n:012}") for n in range(10)]
        calls = [asyncio.create_task(send(client, target, call=call)) for call in unlike]
        await stub.wait_for(lambda: len(stub.calls) >= 4)
        await client.state(target, time_limit=5.0)  # a probe needs no slot
        waiting = len(stub.calls)
        gate.set()
        await asyncio.gather(*calls)

    assert waiting == 4
    assert len(stub.calls) == 10


async def test_another_bound_holds_for_the_next_calls() -> None:
    gate = asyncio.Event()
    async with StubBackend(behaviour=answer_when(gate)) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        await client.state(target, time_limit=5.0)
        client.configure([target], RoutingConfig(max_calls_per_backend=2))

        unlike = [call_of(revision=f"{n:012}") for n in range(4)]
        calls = [asyncio.create_task(send(client, target, call=call)) for call in unlike]
        await stub.wait_for(lambda: len(stub.calls) >= 2)
        await client.state(target, time_limit=5.0)
        waiting = len(stub.calls)
        gate.set()
        await asyncio.gather(*calls)

    assert waiting == 2


async def test_a_backend_that_moved_is_called_where_it_is() -> None:
    async with StubBackend() as before, StubBackend() as after, HttpBackendClient() as client:
        for stub in (before, after):
            await send(client, endpoint("moving", url=stub.url))

    assert [len(stub.calls) for stub in (before, after)] == [1, 1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[", "nonsense", "ftp://a", ""])
async def test_a_url_that_is_none_is_an_unreachable_backend(url: str) -> None:
    async with HttpBackendClient() as client:
        with pytest.raises(CallFailed) as caught:
            await send(
                client,
                Endpoint(backend=endpoint("x").backend, region=endpoint("x").region, url=url),
            )

    assert caught.value.cause is Cause.UNREACHABLE


async def test_an_answer_of_something_else_is_retryable() -> None:
    async def bad_gateway(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.whole(502, b"<html>bad gateway</html>")

    async with StubBackend(behaviour=bad_gateway) as stub, HttpBackendClient() as client:
        with pytest.raises(CallFailed) as caught:
            await send(client, endpoint_of(stub))

    assert caught.value.cause is Cause.CUT
    assert caught.value.retryable


async def test_bytes_that_are_no_http_are_a_failure_of_the_call() -> None:
    async def babble(stub: StubBackend, call: Call, reply: Reply) -> None:
        reply._has_begun = True
        await reply.send_raw(b"220 smtp ready\r\n\r\n")
        reply.cut()

    async with StubBackend(behaviour=babble) as stub, HttpBackendClient() as client:
        with pytest.raises(CallFailed) as caught:
            await send(client, endpoint_of(stub))

    assert caught.value.retryable


async def test_a_trickle_of_outcomes_is_not_silence() -> None:
    async def trickle(stub: StubBackend, call: Call, reply: Reply) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(7):
            beat = loop.create_future()
            loop.call_later(0.3, beat.set_result, None)
            await beat
            await reply.send(echo(call, 0, stub.backend_id))
        await reply.end()

    async with StubBackend(behaviour=trickle) as stub, HttpBackendClient() as client:
        received: list[Done | Failed] = []
        await send(client, endpoint_of(stub), received=received, idle_timeout=2.0)

    assert len(received) == 7


async def test_a_large_body_arrives_whole() -> None:
    text = "large" * 1_000_000
    async with StubBackend() as stub, HttpBackendClient() as client:
        await send(client, endpoint_of(stub), call=call_of(text))

    (call,) = stub.calls
    assert msgspec.msgpack.decode(call.items[0].body) == text
    assert "transfer-encoding" not in stub.headers[0]


async def test_a_backend_that_does_not_read_is_given_up() -> None:
    """A body larger than the sockets' buffers, to a backend that takes no byte of it."""
    async with StubBackend() as stub, HttpBackendClient() as client:
        stub.is_reading = False
        large = call_of("x" * 30_000_000)

        with pytest.raises(CallFailed) as caught:
            await send(client, endpoint_of(stub), call=large, idle_timeout=0.2)
        stub.is_reading = True
        await send(client, endpoint_of(stub))

    assert caught.value.cause is Cause.TIMED_OUT
    assert len(stub.calls) == 1


async def test_hundreds_of_cancelled_calls_leak_neither_connections_nor_slots() -> None:
    """Cancelled before, while and after connecting, some of them twice; then all slots work."""
    random = Random(7)
    async with StubBackend(behaviour=hang) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        client.configure([target], RoutingConfig(max_calls_per_backend=32, connect_timeout=10.0))

        for _ in range(12):
            calls = [
                asyncio.create_task(send(client, target, call=call_of(revision=f"{n:012}")))
                for n in range(50)
            ]
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
                if random.random() < 0.5:
                    await asyncio.sleep(0)
                    call.cancel()
            await asyncio.wait(calls)
            assert all(call.cancelled() for call in calls)
        await stub.wait_for(lambda: stub.open_connections == 0)

        gate = asyncio.Event()
        stub.calls.clear()
        stub.behaviour = answer_when(gate)
        full = [
            asyncio.create_task(send(client, target, call=call_of(revision=f"{n:012}")))
            for n in range(64)
        ]
        await stub.wait_for(lambda: len(stub.calls) == 32)
        gate.set()
        await asyncio.gather(*full)
        stub.behaviour = answer
        await asyncio.gather(*(send(client, target) for _ in range(500)))

        assert stub.open_connections <= 32


async def test_a_call_that_was_cancelled_receives_nothing_more() -> None:
    gate = asyncio.Event()
    received: list[Done | Failed] = []
    async with StubBackend(behaviour=answer_when(gate)) as stub, HttpBackendClient() as client:
        call = asyncio.create_task(send(client, endpoint_of(stub), received=received))
        await stub.wait_for(lambda: len(stub.calls) == 1)

        gate.set()
        call.cancel()
        await asyncio.wait((call,))
        await client.state(endpoint_of(stub), time_limit=5.0)

    assert received == []


async def test_waiting_for_one_of_few_places_is_no_silence_of_the_backend() -> None:
    gate = asyncio.Event()

    async with StubBackend(behaviour=answer_when(gate)) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        client.configure([target], RoutingConfig(max_calls_per_backend=1))
        first = asyncio.create_task(send(client, target))
        await until(lambda: len(stub.calls) == 1)
        with pytest.raises(CallFailed) as crowded:
            await send(client, target, call=call_of(revision="bbbbbbbbbbbb"), idle_timeout=0.05)
        gate.set()
        await first

    assert (crowded.value.cause, crowded.value.code) == (Cause.REFUSED, "overloaded")
    assert crowded.value.retryable


async def test_calls_that_wait_have_their_turns_in_order() -> None:
    gate = asyncio.Event()
    async with StubBackend(behaviour=answer_when(gate)) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        client.configure([target], RoutingConfig(max_calls_per_backend=1))
        names = [f"{number:012}" for number in range(4)]
        calls = [
            asyncio.create_task(send(client, target, call=call_of(revision=name))) for name in names
        ]
        await stub.wait_for(lambda: len(stub.calls) == 1)
        calls[1].cancel()
        await asyncio.wait(calls[1:2])
        gate.set()
        await asyncio.gather(calls[0], *calls[2:])

    assert [call.revision for call in stub.calls] == [names[0], *names[2:]]
