"""Both clients turn whatever comes of a request into an answer or an error of their own."""

import asyncio
from concurrent.futures import Future

import httpx
import msgspec
import pytest

from sluicegate import AsyncSluicegate, InvalidItem, NoAnswer, Options, Sluicegate
from sluicegate.client import calls
from sluicegate.client.parts import has_failed

pytestmark = pytest.mark.anyio
_ONCE = Options(retries=0)


def garbled(request: httpx.Request) -> httpx.Response:
    """Answer what is not compressed as it says."""
    headers = {"content-encoding": "gzip"}
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"plain"))


async def test_an_answer_that_cannot_be_inflated_is_an_error_of_the_client() -> None:
    transport = httpx.MockTransport(garbled)

    with httpx.Client(transport=transport) as http, pytest.raises(NoAnswer):
        Sluicegate("http://g", options=_ONCE, http=http).list_models()
    async with httpx.AsyncClient(transport=transport) as http_:
        with pytest.raises(NoAnswer):
            await AsyncSluicegate("http://g", options=_ONCE, http=http_).list_models()


async def test_the_time_bounds_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_GRACE", 0.0)

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with httpx.AsyncClient(transport=httpx.MockTransport(hang)) as http:
        client = AsyncSluicegate("http://g", options=Options(timeout=0.01), http=http)
        with pytest.raises(NoAnswer, match="took too long"):
            await client.list_models()


async def test_no_part_is_begun_after_one_that_failed() -> None:
    begun: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        (text,) = msgspec.json.decode(request.content)["input"]
        begun.append(text)
        if text == "b":
            problem = {"code": "invalid_item", "detail": "Why.", "index": 0}
            media = {"content-type": "application/problem+json"}
            return httpx.Response(422, json=problem, headers=media)
        usage = {"items": 1}
        body = {"model": "m", "revision": "r", "results": [{"labels": []}], "usage": usage}
        return httpx.Response(200, json=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = AsyncSluicegate("http://g", options=_ONCE, http=http)
        results = client.in_parts(size=1, concurrency=2).classify("m", list("abcd"))
        await anext(results)
        for _ in range(100):  # until the second has failed
            await asyncio.sleep(0)
        with pytest.raises(InvalidItem):
            await anext(results)

    assert begun == ["a", "b"]


def test_a_part_that_failed_is_seen_among_those_under_way() -> None:
    under_way: Future[None] = Future()
    failed: Future[None] = Future()

    assert not has_failed([(0, under_way), (1, failed)])
    failed.set_exception(NoAnswer("lost"))
    assert has_failed([(0, under_way), (1, failed)])
