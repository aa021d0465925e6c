"""The core answers at once, or by its callback, whoever asks."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from sluicegate.gateway.api import content_coding
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.incoming_request import IncomingRequest
from sluicegate.gateway.api.request_state import RequestState
from sluicegate.gateway.dispatch.work import settle
from sluicegate.gateway.types import ItemOutcome, Source
from testing.waiting import until
from tests.support.api import AUTHORIZATION, Api

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return Api()


def state_of(api: Api, *headers: tuple[bytes, bytes]) -> RequestState:
    """Return a request whose head was read."""
    match = api.routes.find("/v1/classify")
    assert match is not None
    fields = [(name.encode(), value.encode()) for name, value in AUTHORIZATION.items()]
    state = api.processor.new_state(match)
    request = IncomingRequest("POST", "/v1/classify", [*fields, *headers], keys=api.keys)
    api.processor.read_head(state, request)
    state.on_head_read()
    return state


def about(text: str) -> bytes:
    return msgspec.json.encode({"model": "sentiment", "input": text})


class Replies(asyncio.Queue[HttpReply]):
    """Takes answers."""

    def __call__(self, _: RequestState, reply: HttpReply) -> None:
        self.put_nowait(reply)

    async def next(self) -> HttpReply:
        """Return the next answer."""
        async with asyncio.timeout(10):
            return await self.get()


async def test_a_miss_is_answered_by_the_callback_and_a_hit_at_once(api: Api) -> None:
    replies = Replies()

    missed = api.core.answer(state_of(api), about("a text"), replies)
    before = replies.qsize()
    reply = await replies.next()
    hit = api.core.answer(state_of(api), about("a text"), replies)

    assert (missed, before) == (None, 0)
    assert hit is not None
    assert (reply.status, hit.status, replies.qsize()) == (200, 200, 0)


async def test_a_request_that_is_cancelled_while_it_is_computed_gets_a_problem(api: Api) -> None:
    api.scene.runner.gate.clear()
    replies, state = Replies(), state_of(api)

    api.core.answer(state, about("a text"), replies)
    await asyncio.sleep(0)
    api.core.cancel(state)
    reply = await replies.next()
    api.scene.runner.gate.set()
    await api.core.reply(state_of(api), about("a text"))

    assert reply.status == 503
    assert replies.empty()
    assert sorted(event.status for event in api.events.events) == [200, 503]


async def test_a_request_that_is_cancelled_while_it_waits_for_its_turn_gets_a_problem(
    api: Api,
) -> None:
    replies, state = Replies(), state_of(api)

    async with api.processor._turn:
        api.core.answer(state, about("word " * 2_000), replies)
        await asyncio.sleep(0)
        api.core.cancel(state)
        reply = await replies.next()

    assert reply.status == 503
    assert [event.status for event in api.events.events] == [503]


async def test_a_request_that_is_cancelled_during_its_look_up_leaves_no_claim(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Callable[[list[None]], object]] = []
    monkeypatch.setattr(
        api.scene.cache, "lookup_nowait", lambda _keys, on_done, *_, **__: held.append(on_done)
    )
    replies, state = Replies(), state_of(api)
    api.core.answer(state, about("a text"), replies)

    api.core.cancel(state)
    reply = await replies.next()
    held[0]([None])

    assert reply.status == 503
    assert replies.empty()
    assert len(api.events.events) == 1
    assert len(api.scene.cache.released) == 1


async def test_an_answer_that_is_cancelled_as_it_becomes_ready_is_given_and_counted_once(
    api: Api,
) -> None:
    api.scene.runner.gate.clear()
    replies, state = Replies(), state_of(api)
    api.core.answer(state, about("word " * 2_000), replies)
    await until(lambda: state.waits is not None, what="the items are computed")

    api.core.cancel(state)
    (item,) = state.waits.led if state.waits is not None else ()
    settle([(item, ItemOutcome(source=Source.COMPUTED, result=b"[]"))])
    reply = await replies.next()

    assert reply.status == 200
    assert [event.status for event in api.events.events] == [200]


async def test_a_coroutine_that_is_cancelled_returns_the_problem(api: Api) -> None:
    api.scene.runner.gate.clear()
    task = asyncio.create_task(api.core.reply(state_of(api), about("a text")))
    await until(lambda: api.scene.runner.begun > 0)

    task.cancel()
    reply = await task

    assert reply.status == 503


@pytest.mark.parametrize("is_failing", [False, True])
async def test_an_answer_that_cannot_be_compressed_is_sent_as_it_is(
    api: Api, monkeypatch: pytest.MonkeyPatch, *, is_failing: bool
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    if is_failing:
        monkeypatch.setattr(content_coding, "_compress", fail)
    label = "long " * content_coding.SMALLEST
    api.scene.runner.result = lambda _: msgspec.json.encode([{"label": label, "score": 1.0}])
    state = state_of(api, (b"accept-encoding", b"gzip"))

    reply = await api.core.reply(state, about("a text"))
    api.core.release(state)

    assert reply.status == 200
    assert (b"content-encoding: gzip" in reply.lines) != is_failing
    assert (label.encode() in reply.body) == is_failing
