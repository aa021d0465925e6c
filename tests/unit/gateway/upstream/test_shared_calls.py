"""Like calls of about the same time travel as one, and nobody notices but the backend."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.types import Endpoint
from gateway.upstream.base import CallFailed, Cause
from gateway.upstream.http import HttpBackendClient
from gateway.upstream.shared_call import MAX_ITEMS, SharedCall
from loadtests.simulate.virtual_time import run_virtual
from testing.stub_backend import Reply, StubBackend, answer, echo
from tests.support.dispatching import call_backend, endpoint_of
from wire.protocol import Call, CallItem, Done, Failed, Report, Task, encode_frame

pytestmark = pytest.mark.anyio


def call_of(*texts: str, **changes: Any) -> Call:
    items = [
        CallItem(body=msgspec.msgpack.encode(text), remaining=5.0, scope="tenant:a")
        for text in texts
    ]
    call = Call(
        model="stub",
        revision="aaaaaaaaaaaa",
        profile="fp32",
        task=Task.CLASSIFY,
        parameters=b"\x80",
        items=items,
    )
    return msgspec.structs.replace(call, **changes)


class Asker:
    """A caller and what he got."""

    def __init__(self, client: HttpBackendClient, target: Endpoint, call: Call) -> None:
        self._call = call
        self.frames: list[Done | Failed] = []
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(client, target))

    async def _run(self, client: HttpBackendClient, target: Endpoint) -> Report:
        now = asyncio.get_running_loop().time()
        return await call_backend(
            client,
            target,
            self._call,
            deadline=now + 20.0,
            idle_timeout=10.0,
            receive=self._receive,
        )

    def _receive(self, frames: Sequence[Done | Failed]) -> None:
        self.frames += frames
        if not self.first.done():
            self.first.set_result(None)

    def echoes(self) -> list[str]:
        """Return the texts that came back, by the caller's own indices."""
        done = [f for f in sorted(self.frames, key=lambda f: f.index) if isinstance(f, Done)]
        return [msgspec.json.decode(frame.result)["echo"] for frame in done]


async def test_calls_of_one_tick_travel_as_one_and_each_gets_its_own() -> None:
    async with StubBackend() as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        askers = [Asker(client, target, call_of(*texts)) for texts in ("ab", "c", "def")]
        await asyncio.gather(*(asker.task for asker in askers))

    assert len(stub.calls) == 1
    assert [asker.echoes() for asker in askers] == [["a", "b"], ["c"], ["d", "e", "f"]]


@pytest.mark.parametrize(
    "unlike",
    [
        {"model": "other"},
        {"revision": "bbbbbbbbbbbb"},
        {"profile": "fp16"},
        {"task": Task.EMBED},
        {"parameters": b"\x81\xa5top_k\x01"},
        {"lane": "bulk"},
        {"truncate": False},
    ],
)
async def test_calls_that_differ_travel_apart(unlike: dict[str, Any]) -> None:
    async with StubBackend() as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        askers = [
            Asker(client, target, call_of("a")),
            Asker(client, target, call_of("b", **unlike)),
        ]
        await asyncio.gather(*(asker.task for asker in askers))

    assert len(stub.calls) == 2


async def test_a_request_of_several_items_travels_alone_and_its_end_is_heard() -> None:
    closed = asyncio.Event()

    async def hang_up(stub: StubBackend, call: Call, reply: Reply) -> None:
        if len(call.items) == 1:
            await answer(stub, call, reply)
            return
        await reply.send(echo(call, 0, "b"))
        await reply.until_closed()
        closed.set()

    async with StubBackend(behaviour=hang_up) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        single = Asker(client, target, call_of("a"))
        several = Asker(client, target, call_of("b", "c", atomic=True))
        await several.first
        several.task.cancel()
        await asyncio.wait_for(closed.wait(), 5.0)
        await single.task

    assert sorted(len(call.items) for call in stub.calls) == [1, 2]


async def test_reports_before_any_outcome_end_nothing() -> None:
    async def waits(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send(Report())
        await reply.send(Report())
        await answer(stub, call, reply)

    async with StubBackend(behaviour=waits) as stub, HttpBackendClient() as client:
        askers = [Asker(client, endpoint_of(stub), call_of(text)) for text in "ab"]
        await asyncio.gather(*(asker.task for asker in askers))

    assert [asker.echoes() for asker in askers] == [["a"], ["b"]]


async def test_whoever_has_all_of_his_does_not_wait_for_the_others() -> None:
    gate = asyncio.Event()

    async def second_is_slow(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send(echo(call, 0, "b"), Report())
        await gate.wait()
        await reply.send(echo(call, 1, "b"))
        await reply.end()

    async with StubBackend(behaviour=second_is_slow) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        quick, slow = Asker(client, target, call_of("a")), Asker(client, target, call_of("b"))
        await quick.task
        slow_was_done = slow.task.done()
        gate.set()
        await slow.task

    assert not slow_was_done
    assert (quick.echoes(), slow.echoes()) == (["a"], ["b"])


async def test_a_caller_who_leaves_harms_nobody() -> None:
    gate = asyncio.Event()

    async def wait(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send(echo(call, 0, "b"))
        await gate.wait()
        await answer(stub, call, reply)

    async with StubBackend(behaviour=wait) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        leaver, stayer = Asker(client, target, call_of("a")), Asker(client, target, call_of("b"))
        await leaver.first
        leaver.task.cancel()
        await asyncio.wait((leaver.task,))
        gate.set()
        await stayer.task

    assert stayer.echoes() == ["b"]


async def test_when_all_have_left_the_call_ends() -> None:
    closed = asyncio.Event()

    async def hang(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send(echo(call, 0, "b"))
        await reply.until_closed()
        closed.set()

    async with StubBackend(behaviour=hang) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        askers = [Asker(client, target, call_of("a")), Asker(client, target, call_of("b"))]
        await askers[0].first
        for asker in askers:
            asker.task.cancel()
        await asyncio.wait_for(closed.wait(), 60.0)


async def test_a_cut_reaches_those_who_miss_something_and_no_one_else() -> None:
    async def cut(stub: StubBackend, call: Call, reply: Reply) -> None:
        await reply.send(echo(call, 0, "b"), Report())
        reply.cut()

    async with StubBackend(behaviour=cut) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        answered, cut_off = Asker(client, target, call_of("a")), Asker(client, target, call_of("b"))
        await answered.task
        with pytest.raises(CallFailed) as caught:
            await cut_off.task

    assert caught.value.cause is Cause.CUT


async def test_a_full_call_leaves_the_rest_to_the_next() -> None:
    async with StubBackend() as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        many = ["a"] * (MAX_ITEMS - 1)
        askers = [Asker(client, target, call_of(*many)), Asker(client, target, call_of("b", "c"))]
        await asyncio.gather(*(asker.task for asker in askers))

    assert sorted(len(call.items) for call in stub.calls) == [2, MAX_ITEMS - 1]


async def test_frames_that_belong_to_nobody_are_ignored() -> None:
    call = call_of("a")
    shared = SharedCall(call)
    received: list[Done | Failed] = []
    now = asyncio.get_running_loop().time()
    ended: list[Report | BaseException] = []
    shared.join(call, received.extend, ended.append, deadline=now + 20.0, idle_timeout=10.0)

    for index in (-1, 7, 0, 0):
        shared.feed(encode_frame(Done(index=index, result=b"{}", rows=1, tokens=1)))
    shared.feed(encode_frame(Report()))
    shared.end()

    assert ended == [Report()]
    assert [frame.index for frame in received] == [0, 0]


async def test_items_that_waited_for_a_place_have_that_much_less_time() -> None:
    now = asyncio.get_running_loop().time()
    shared = SharedCall(call_of("a"))
    for text, within in (("a", 5.0), ("b", 20.0)):
        shared.join(call_of(text), print, print, deadline=now + within, idle_timeout=10.0)

    left = [item.remaining for item in shared.call_at(now + 1000.0, sender=7).items]

    assert left == [pytest.approx(-995.0, abs=10.0)] * 2


async def test_a_fault_of_one_caller_costs_no_other_his_answer() -> None:
    now = asyncio.get_running_loop().time()
    shared = SharedCall(call_of("a"))
    received: list[Done | Failed] = []

    def broken(_: object) -> None:
        raise ZeroDivisionError

    faulty: list[Report | BaseException] = []
    sound: list[Report | BaseException] = []
    for text, receive, ended in (("a", broken, faulty), ("b", received.extend, sound)):
        shared.join(call_of(text), receive, ended.append, deadline=now + 20.0, idle_timeout=10.0)
    for index in (0, 1):
        shared.feed(encode_frame(Done(index=index, result=b"{}", rows=1, tokens=1)))
    shared.feed(encode_frame(Report()))
    shared.end()

    assert [type(how) for how in faulty] == [ZeroDivisionError]
    assert sound == [Report()]
    assert len(received) == 1


@pytest.mark.parametrize("patience", [(5.0, 20.0), (20.0, 5.0)])
async def test_a_call_may_take_as_long_as_its_most_patient_caller(
    patience: tuple[float, float],
) -> None:
    now = asyncio.get_running_loop().time()
    shared = SharedCall(call_of("a"))

    for within in patience:
        shared.join(call_of("a"), print, print, deadline=now + within, idle_timeout=60.0)

    assert shared.silent_at() == now + 20.0


@pytest.mark.parametrize("idle", [(5.0, 20.0), (20.0, 5.0)])
async def test_a_backend_may_be_silent_as_long_as_any_caller_allows(
    idle: tuple[float, float],
) -> None:
    now = asyncio.get_running_loop().time()
    shared = SharedCall(call_of("a"))

    for idle_timeout in idle:
        shared.join(call_of("a"), print, print, deadline=now + 1e6, idle_timeout=idle_timeout)

    assert shared.silent_at() >= now + 20.0


def test_each_item_waited_for_a_place_since_it_joined() -> None:
    async def left() -> list[float]:
        shared = SharedCall(call_of("a"))
        loop = asyncio.get_running_loop()
        for text in "ab":
            shared.join(call_of(text), print, print, deadline=1e6, idle_timeout=10.0)
            later: asyncio.Future[None] = loop.create_future()
            loop.call_later(1.0, later.set_result, None)
            await later
        return [item.remaining for item in shared.call_at(loop.time(), sender=7).items]

    assert run_virtual(left()) == pytest.approx([3.0, 4.0])


async def test_a_call_of_many_bytes_leaves_the_rest_to_the_next() -> None:
    large = call_of("x" * 200_000)
    shared = SharedCall(large)
    shared.join(large, print, print, deadline=1e6, idle_timeout=10.0)

    assert [shared.has_room(call) for call in (large, call_of("x"))] == [False, True]


@pytest.mark.parametrize("answered", [0, 1])
async def test_only_a_call_with_unanswered_items_is_ended_with_its_callers(answered: int) -> None:
    call, stopped = call_of("a"), list[bool]()
    shared = SharedCall(call)
    part = shared.join(call, list[object]().extend, print, deadline=1e6, idle_timeout=10.0)
    shared.on_abandoned(lambda: stopped.append(True))

    for index in range(answered):
        shared.feed(encode_frame(Done(index=index, result=b"{}", rows=1, tokens=1)))
    part.cancel()

    assert stopped == [True] * (1 - answered)


async def test_an_answer_that_ends_after_outcomes_without_a_report_is_cut() -> None:
    call = call_of("a", "b")
    shared = SharedCall(call)
    now = asyncio.get_running_loop().time()
    ended: list[Report | BaseException] = []
    shared.join(call, print, ended.append, deadline=now + 20.0, idle_timeout=10.0)

    shared.feed(encode_frame(Report()))
    shared.feed(encode_frame(Done(index=0, result=b"{}", rows=1, tokens=1)))
    shared.end()

    (how,) = ended
    assert isinstance(how, CallFailed)
    assert how.cause is Cause.CUT
