"""Every `BackendClient` keeps its promises: both HTTP clients, and the fake that tests use."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

import msgspec
import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import BackendClient, CallFailed, Cause
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.wire.protocol import Call, CallItem, Done, Failed, Refusal, Report, Task
from testing.stub_backend import Reply, StubBackend, echo
from tests.support.dispatching import call_backend, endpoint, endpoint_of, state
from tests.support.scripted_client import Hang, ScriptedClient, Step
from tests.support.silent_addresses import silent

# What a backend does with a call, in terms that both a script and a stub can play.
Steps = Callable[[Call], list[Step]]
Opened = tuple[BackendClient, Endpoint]
Opener = Callable[[Steps], AbstractAsyncContextManager[Opened]]

pytestmark = pytest.mark.anyio


async def play(steps: list[Step], reply: Reply) -> None:
    """Do over HTTP what the steps say."""
    for step in steps:
        if isinstance(step, Hang):
            await reply.until_closed()
        elif isinstance(step, Report):
            await reply.end(step)
            return
        elif isinstance(step, CallFailed):
            refusal = Refusal(code=step.code, detail=step.detail, retryable=step.retryable)
            await reply.whole(step.status, msgspec.msgpack.encode(refusal))
            return
        elif isinstance(step, Done | Failed):
            await reply.send(step)
    reply.cut()


@asynccontextmanager
async def over_http(steps: Steps) -> AsyncIterator[Opened]:
    async def behave(stub: StubBackend, call: Call, reply: Reply) -> None:
        await play(steps(call), reply)

    async with StubBackend(behaviour=behave) as stub, HttpBackendClient() as client:
        yield client, endpoint_of(stub)


@asynccontextmanager
async def over_kept_connection(steps: Steps) -> AsyncIterator[Opened]:
    async with over_http(steps) as (client, target):
        await client.state(target, time_limit=5.0)
        yield client, target


@asynccontextmanager
async def over_httpx(steps: Steps) -> AsyncIterator[Opened]:
    async with over_http(steps) as (client, target):
        assert isinstance(client, HttpBackendClient)
        client.configure([target], RoutingConfig(client="httpx"))
        yield client, target


@asynccontextmanager
async def scripted(steps: Steps) -> AsyncIterator[Opened]:
    async def script(_: Endpoint, call: Call) -> AsyncIterator[Step]:
        for step in steps(call):
            yield step

    client = ScriptedClient(script)
    client.states["stub"] = state()
    yield client, endpoint("stub")


@pytest.fixture(
    params=[over_http, over_kept_connection, over_httpx, scripted],
    ids=["native", "kept", "httpx", "scripted"],
)
def opened(request: pytest.FixtureRequest) -> Opener:
    opener: Opener = request.param
    return opener


def call_of(count: int) -> Call:
    items = [
        CallItem(body=msgspec.msgpack.encode(f"text {n}"), remaining=5.0, scope="tenant-a")
        for n in range(count)
    ]
    return Call(
        model="stub",
        revision="aaaaaaaaaaaa",
        profile="fp32",
        task=Task.CLASSIFY,
        parameters=b"\x80",
        items=items,
    )


async def send(
    opened: Opened, call: Call, received: list[Done | Failed], *, idle_timeout: float = 5.0
) -> Report:
    client, target = opened
    return await call_backend(
        client,
        target,
        call,
        deadline=asyncio.get_running_loop().time() + 5.0,
        idle_timeout=idle_timeout,
        receive=received.extend,
    )


async def test_outcomes_arrive_in_order_and_the_report_is_returned(opened: Opener) -> None:
    report = Report(queued_tokens=7)
    received: list[Done | Failed] = []

    async with opened(lambda call: [echo(call, 1, "b"), echo(call, 0, "b"), report]) as client:
        returned = await send(client, call_of(2), received)

    assert [frame.index for frame in received] == [1, 0]
    assert returned == report


async def test_outcomes_before_a_cut_are_delivered(opened: Opener) -> None:
    received: list[Done | Failed] = []

    async with opened(lambda call: [echo(call, 0, "b")]) as client:
        with pytest.raises(CallFailed) as caught:
            await send(client, call_of(2), received)

    assert caught.value.cause is Cause.CUT
    assert caught.value.retryable
    assert [frame.index for frame in received] == [0]


async def test_an_outcome_is_delivered_while_the_call_still_runs(opened: Opener) -> None:
    first = asyncio.get_running_loop().create_future()

    async with opened(lambda call: [echo(call, 0, "b"), Hang()]) as (client, target):
        running = asyncio.create_task(
            call_backend(
                client,
                target,
                call_of(2),
                deadline=asyncio.get_running_loop().time() + 60.0,
                idle_timeout=60.0,
                receive=lambda frames: first.set_result(frames[0]),
            )
        )
        frame = await asyncio.wait_for(first, 60.0)
        running.cancel()
        await asyncio.wait((running,))

    assert frame.index == 0
    assert running.cancelled()


async def test_silence_ends_the_call_as_timed_out(opened: Opener) -> None:
    async with opened(lambda _: [Hang()]) as client:
        with pytest.raises(CallFailed) as caught:
            await send(client, call_of(1), [], idle_timeout=0.05)

    assert caught.value.cause is Cause.TIMED_OUT


async def test_a_refusal_says_its_code_and_status(opened: Opener) -> None:
    refusal = CallFailed(Cause.REFUSED, "busy", status=503, code="overloaded", retryable=True)

    async with opened(lambda _: [refusal]) as client:
        with pytest.raises(CallFailed) as caught:
            await send(client, call_of(1), [])

    error = caught.value
    assert (error.cause, error.status, error.code) == (Cause.REFUSED, 503, "overloaded")
    assert error.retryable


async def test_the_state_is_read(opened: Opener) -> None:
    async with opened(lambda _: []) as (client, target):
        found = await client.state(target, time_limit=5.0)

    assert found.ready
    assert [model.name for model in found.models] == ["stub"]


async def test_the_state_of_a_backend_that_is_not_there_cannot_be_read() -> None:
    async with StubBackend() as stub:
        gone = endpoint_of(stub)
    async with HttpBackendClient() as native, HttpBackendClient() as httpx:
        httpx.configure([gone], RoutingConfig(client="httpx"))
        for each in (native, httpx, ScriptedClient()):
            with pytest.raises(CallFailed) as caught:
                await each.state(gone, time_limit=5.0)

            assert caught.value.cause is Cause.UNREACHABLE


@pytest.mark.parametrize("client", ["native", "httpx"])
async def test_a_backend_that_takes_no_connection_is_silent(
    client: Literal["native", "httpx"],
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
    busy = endpoint("busy", url=f"http://127.0.0.2:{port}")
    with silent(port, "127.0.0.2"):
        async with HttpBackendClient() as http:
            http.configure([busy], RoutingConfig(client=client, connect_timeout=0.05))
            with pytest.raises(CallFailed) as caught:
                await http.state(busy, time_limit=60.0)

    assert caught.value.cause is Cause.TIMED_OUT


@pytest.mark.parametrize("client", ["native", "httpx"])
async def test_an_answer_that_is_no_frame_is_a_cut(client: Literal["native", "httpx"]) -> None:
    async def garble(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send_raw(b"40\r\n" + b"\xff" * 64 + b"\r\n0\r\n\r\n")

    async with StubBackend(behaviour=garble) as stub, HttpBackendClient() as http:
        http.configure([endpoint_of(stub)], RoutingConfig(client=client))
        with pytest.raises(CallFailed) as caught:
            await send((http, endpoint_of(stub)), call_of(1), [])

    assert caught.value.cause is Cause.CUT
