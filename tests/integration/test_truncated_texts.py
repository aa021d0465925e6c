"""Texts that a model cuts, as callers see it: marked, also as hits, or refused on their wish."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.wire.protocol import Call, Done, Failed
from testing.raw_http import Response, post
from testing.stub_backend import Reply, StubBackend, echo
from testing.waiting import until
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_PATH = "/v1/classify"
_TOKENS = 300


async def cut_long_ones(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer as a backend whose model cuts texts that begin with `long`."""
    for index in range(len(call.items)):
        answered = echo(call, index, stub.backend_id)
        if b"long" in call.items[index].body:
            answered = msgspec.structs.replace(answered, truncated_from=_TOKENS)
        if answered.truncated_from and not call.truncate:
            await reply.send(refusal(index))
        else:
            await reply.send(answered)
    await reply.end(stub.report)


def refusal(index: int) -> Failed:
    detail = f"the text has {_TOKENS} tokens; `stub` reads at most 128"
    return Failed(index=index, status=422, code="input_too_long", detail=detail, retryable=False)


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend(behaviour=cut_long_ones) as running:
        yield running


@pytest.fixture
async def worker(tmp_path: Path, valkey: str, stub: StubBackend) -> AsyncIterator[RunningWorker]:
    async with running_worker(tmp_path, valkey, [stub]) as running:
        yield running


async def ask(worker: RunningWorker, body: bytes, path: str = _PATH) -> Response:
    async with worker.connect() as connection:
        await connection.send(post(path, body))
        return await connection.response()


async def test_results_and_usage_say_which_texts_were_cut(worker: RunningWorker) -> None:
    answered = (await ask(worker, classify("short", "long one"))).json()

    assert ["truncated" in result for result in answered["results"]] == [False, True]
    assert answered["results"][1]["truncated"] is True
    assert answered["usage"]["truncated"] == 1


async def test_hits_are_marked_as_the_first_answer_was(worker: RunningWorker) -> None:
    first = await ask(worker, classify("long hit"))
    hits = [await ask(worker, classify("long hit")) for _ in range(4)]
    others = [await ask(worker, classify("short hit")) for _ in range(3)]

    assert {hit.headers["cache-status"] for hit in hits} == {"sluicegate; hit; detail=memory"}
    for hit in hits:
        assert hit.json()["results"] == first.json()["results"]
        assert hit.json()["usage"]["truncated"] == 1
    assert len({hit.body for hit in hits}) == 1
    assert [other.json()["usage"]["truncated"] for other in others] == [0, 0, 0]


async def test_ranked_documents_say_it_each(worker: RunningWorker, stub: StubBackend) -> None:
    async def score(stub: StubBackend, call: Call, reply: Reply) -> None:
        for index in range(len(call.items)):
            score = b'{"score":0.%d}' % (index + 1)
            cut = _TOKENS if index else 0
            await reply.send(Done(index=index, result=score, rows=1, tokens=4, truncated_from=cut))
        await reply.end(stub.report)

    stub.behaviour = score
    body = {"model": "stub", "query": "q", "documents": ["a", "b"]}

    answered = (await ask(worker, msgspec.json.encode(body), "/v1/rerank")).json()

    assert answered["results"] == [
        {"index": 1, "score": 0.2, "truncated": True},
        {"index": 0, "score": 0.1},
    ]


async def test_a_request_may_refuse_to_have_its_texts_cut(
    worker: RunningWorker, stub: StubBackend
) -> None:
    refused = await ask(worker, classify("short", "long new", truncate=False))
    alone = await ask(worker, classify("long new", truncate=False, on_error="continue"))
    answered = await ask(worker, classify("long new"))
    from_cache = await ask(worker, classify("long new", truncate=False))

    for response in (refused, from_cache):
        problem = response.json()
        assert (response.status, problem["code"]) == (422, "invalid_item")
        assert problem["item_code"] == "input_too_long"
        assert f"{_TOKENS} tokens" in problem["detail"]
        assert "at most 128" in problem["detail"]
    assert (refused.json()["index"], from_cache.json()["index"]) == (1, 0)
    assert alone.json()["results"][0]["error"]["code"] == "input_too_long"
    usage = alone.json()["usage"]
    assert (usage["computed"], usage["failed"], usage["truncated"]) == (0, 1, 0)
    assert answered.json()["usage"]["computed"] == 1
    assert [call.truncate for call in stub.calls] == [False, False, True]


async def test_an_answer_to_a_text_that_fits_is_the_same_either_way(worker: RunningWorker) -> None:
    await ask(worker, classify("short either way", truncate=False))
    answered = await ask(worker, classify("short either way"))

    assert answered.json()["usage"]["hit"] == 1


async def test_who_wants_no_text_cut_does_not_decide_for_others(
    worker: RunningWorker, stub: StubBackend
) -> None:
    gate = asyncio.Event()

    async def later(stub: StubBackend, call: Call, reply: Reply) -> None:
        await gate.wait()
        await cut_long_ones(stub, call, reply)

    stub.behaviour = later
    strict = asyncio.create_task(ask(worker, classify("long at once", truncate=False)))
    await stub.wait_for(lambda: len(stub.calls) == 1)
    other = asyncio.create_task(ask(worker, classify("long at once")))
    await until(lambda: len(stub.calls) == 2, what="a call of its own")
    gate.set()

    assert (await strict).status == 422
    assert (await other).status == 200
