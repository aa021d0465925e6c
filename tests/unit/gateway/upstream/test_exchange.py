"""Calls over a kept connection have no task, and keep the promises of those that have one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import pytest

from loadtests.simulate.virtual_time import VirtualTimeLoop, run_virtual
from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import CallFailed, Cause, StartedCall
from sluicegate.gateway.upstream.exchange import CallExchange, refused
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.wire.protocol import (
    Call,
    CallItem,
    Done,
    Failed,
    Refusal,
    Report,
    Task,
    encode_frame,
)
from testing.stub_backend import Reply, StubBackend, answer, answer_when, echo
from testing.waiting import until
from tests.support.dispatching import endpoint_of

pytestmark = pytest.mark.anyio


class Caller:
    """A call, what it received, and how it ended."""

    def __init__(
        self, client: HttpBackendClient, target: Endpoint, *texts: str, scope: str = "t"
    ) -> None:
        self.received: list[Done | Failed] = []
        self.ends: list[Report | BaseException] = []
        self.over = asyncio.Event()
        items = [
            CallItem(body=msgspec.msgpack.encode(text), remaining=5.0, scope=scope)
            for text in texts
        ]
        call = Call(
            model="stub",
            revision="aaaaaaaaaaaa",
            profile="fp32",
            task=Task.CLASSIFY,
            parameters=b"\x80",
            items=items,
            atomic=len(items) > 1,
        )
        self.started: StartedCall = client.start_call(
            target,
            call,
            deadline=asyncio.get_running_loop().time() + 20.0,
            idle_timeout=1.0,
            receive=self.received.extend,
            on_end=self._end,
        )

    def _end(self, end: Report | BaseException) -> None:
        self.ends.append(end)
        self.over.set()


@asynccontextmanager
async def connected(stub: StubBackend) -> AsyncIterator[tuple[HttpBackendClient, Endpoint]]:
    """Open a client that keeps a connection to the stub, and has no task."""
    async with HttpBackendClient() as client:
        await client.state(endpoint_of(stub), time_limit=5.0)
        yield client, endpoint_of(stub)


async def test_a_call_over_a_kept_connection_starts_no_task() -> None:
    gate = asyncio.Event()
    async with StubBackend(behaviour=answer_when(gate)) as stub, connected(stub) as (client, to):
        caller = Caller(client, to, "a", "b")
        await stub.wait_for(lambda: len(stub.calls) == 1)
        tasks = [str(task.get_coro()) for task in asyncio.all_tasks()]
        gate.set()
        await caller.over.wait()

    assert not [task for task in tasks if "HttpBackendClient" in task]
    assert stub.connections == 1
    assert caller.ends == [Report()]


async def test_who_hears_something_in_time_waits_on() -> None:
    async def trickle(stub: StubBackend, call: Call, reply: Reply) -> None:
        loop = asyncio.get_running_loop()
        for index in range(len(call.items)):
            beat = loop.create_future()
            loop.call_later(0.4, beat.set_result, None)
            await beat
            await reply.send(echo(call, index, stub.backend_id))
        await reply.end()

    async with StubBackend(behaviour=trickle) as stub, connected(stub) as (client, to):
        caller = Caller(client, to, "a", "b", "c")
        await caller.over.wait()

    assert [frame.index for frame in caller.received] == [0, 1, 2]
    assert caller.ends == [Report()]


async def test_who_leaves_amid_the_answer_frees_connection_and_slot() -> None:
    async def first_only(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send(echo(call, 0, stub.backend_id))
        await reply.until_closed()

    async with StubBackend(behaviour=first_only) as stub, connected(stub) as (client, to):
        client.configure([to], RoutingConfig(max_calls_per_backend=1))
        leaving = Caller(client, to, "a", "b")
        await stub.wait_for(lambda: len(stub.calls) == 1)
        leaving.started.cancel()
        await stub.wait_for(lambda: stub.open_connections == 0)
        stub.behaviour = answer
        staying = Caller(client, to, "c")
        await staying.over.wait()

    assert leaving.ends == []
    assert staying.ends == [Report()]


async def test_closing_the_client_ends_calls_in_progress() -> None:
    gate = asyncio.Event()
    async with StubBackend(behaviour=answer_when(gate)) as stub:
        async with connected(stub) as (client, to):
            caller = Caller(client, to, "a")
            await stub.wait_for(lambda: len(stub.calls) == 1)

        assert [type(end) for end in caller.ends] == [asyncio.CancelledError]


async def test_what_cannot_be_sent_frees_the_slot() -> None:
    async with StubBackend() as stub, connected(stub) as (client, to):
        client.configure([to], RoutingConfig(max_calls_per_backend=1))
        with pytest.raises(TypeError):
            Caller(client, to, "a", scope=cast("str", object()))
        sound = Caller(client, to, "a")
        await sound.over.wait()

    assert sound.ends == [Report()]


def test_a_refusal_says_when_to_come_back() -> None:
    refusal = Refusal(code="overloaded", detail="busy", retryable=True, retry_after=3.0)

    error = refused(503, msgspec.msgpack.encode(refusal))

    assert (error.code, error.retryable, error.retry_after) == ("overloaded", True, 3.0)


class Exchanged:
    """An exchange of a call of some items, and what its caller was told."""

    def __init__(self, count: int, *, within: float = 20.0, idle_timeout: float = 10.0) -> None:
        self.received: list[int] = []
        self.ends: list[Report | BaseException] = []
        items = [CallItem(body=b"", remaining=5.0, scope="t") for _ in range(count)]
        call = Call(
            model="stub",
            revision="aaaaaaaaaaaa",
            profile="fp32",
            task=Task.CLASSIFY,
            parameters=b"",
            items=items,
        )
        self.exchange = CallExchange(
            call,
            deadline=asyncio.get_running_loop().time() + within,
            idle_timeout=idle_timeout,
            receive=lambda frames: self.received.extend(frame.index for frame in frames),
            on_end=self.ends.append,
            on_over=lambda _: None,
        )

    def feed(self, *frames: int | Report) -> None:
        """Deliver the outcomes of these items, and reports."""
        for frame in frames:
            if isinstance(frame, Report):
                self.exchange.feed(encode_frame(frame))
            else:
                done = Done(index=frame, result=b"{}", rows=1, tokens=1)
                self.exchange.feed(encode_frame(done))


async def test_reports_before_the_outcomes_end_nothing(anyio_backend: str) -> None:
    exchanged = Exchanged(2)

    exchanged.feed(Report(), 0, Report())
    ends_before = list(exchanged.ends)
    exchanged.feed(1, Report())

    assert ends_before == []
    assert exchanged.received == [0, 1]
    assert exchanged.ends == [Report()]


async def test_the_end_is_told_once(anyio_backend: str) -> None:
    exchanged = Exchanged(1)

    exchanged.feed(0, Report())
    exchanged.exchange.close(CallFailed(Cause.CUT, "late"))

    assert exchanged.ends == [Report()]


async def test_an_answer_that_ends_after_outcomes_without_a_report_is_cut(
    anyio_backend: str,
) -> None:
    exchanged = Exchanged(2)

    exchanged.feed(Report(), 0)
    exchanged.exchange.close(None)

    (how,) = exchanged.ends
    assert isinstance(how, CallFailed)
    assert how.cause is Cause.CUT


async def test_who_has_left_hears_nothing_more(anyio_backend: str) -> None:
    exchanged = Exchanged(2)

    exchanged.feed(0)
    exchanged.exchange.cancel()
    exchanged.feed(1, Report())

    assert (exchanged.received, exchanged.ends) == ([0], [])


def test_items_that_waited_for_a_slot_have_that_much_less_time() -> None:
    async def left() -> float:
        exchanged = Exchanged(1)
        loop = asyncio.get_running_loop()
        later: asyncio.Future[None] = loop.create_future()
        loop.call_later(1.0, later.set_result, None)
        await later
        (item,) = exchanged.exchange.begin(7).items
        return item.remaining

    assert run_virtual(left()) == pytest.approx(4.0)


@pytest.mark.parametrize(("within", "idle", "silent"), [(20.0, 60.0, 20.0), (20.0, 5.0, 5.0)])
def test_silence_ends_with_patience_or_time(within: float, idle: float, silent: float) -> None:
    async def ended_at() -> float:
        exchanged = Exchanged(1, within=within, idle_timeout=idle)
        exchanged.exchange.begin(7)
        await until(lambda: bool(exchanged.ends))
        return asyncio.get_running_loop().time()

    assert run_virtual(ended_at()) == pytest.approx(silent, abs=0.1)


@pytest.mark.parametrize("arrives", [True, False])
def test_what_arrived_during_a_pause_of_this_process_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, *, arrives: bool
) -> None:
    pauses, unpaused = [0.0], VirtualTimeLoop.time
    monkeypatch.setattr(VirtualTimeLoop, "time", lambda loop: unpaused(loop) + pauses[0])

    async def ends() -> list[Report | BaseException]:
        loop, exchanged = asyncio.get_running_loop(), Exchanged(1, idle_timeout=5.0)
        exchanged.exchange.begin(7)
        pauses[0] = 6.0
        if arrives:  # uvloop, too, runs the timer for silence first
            loop.call_at(loop.time(), exchanged.feed, 0, Report())
        await until(lambda: bool(exchanged.ends))
        return exchanged.ends

    (end,) = run_virtual(ends())
    assert isinstance(end, Report if arrives else CallFailed)
