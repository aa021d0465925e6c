"""A large answer is encoded and sent while the worker answers others, at a real worker."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluicegate.gateway.api.inference_route import Rendered
from sluicegate.gateway.dialects.cohere import CohereClassifyRoute
from testing.raw_http import post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from testing.waiting import WAIT_LIMIT, until
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_MANY = [f"a text of some length {number}" for number in range(1000)]


@pytest.fixture(params=["memory", "redis"])
async def worker(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str, request: pytest.FixtureRequest
) -> AsyncIterator[RunningWorker]:
    with Valkey() as server:
        folder, cache = tmp_path_factory.mktemp("w"), {"memory_enabled": request.param == "memory"}
        async with (
            StubBackend() as stub,
            running_worker(folder, server.url, [stub], cache=cache) as one,
        ):
            yield one


class BlockedEncoder:
    """Encodes large answers once it may; `has_begun` says that one waits."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = threading.Event()
        self._loop = asyncio.get_running_loop()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of what `/v1/classify` is encoded with."""
        encode = CohereClassifyRoute.encode

        def blocked(route: Any, body: Any, answer: Any, *rest: Any) -> Rendered:
            if len(answer.outcomes) > 1:
                self._loop.call_soon_threadsafe(self.has_begun.set)
                self.may_end.wait(WAIT_LIMIT)
            return encode(route, body, answer, *rest)

        patch.setattr(CohereClassifyRoute, "encode", blocked)


@pytest.mark.parametrize("in_parts", [False, True], ids=["fast path", "application"])
@pytest.mark.parametrize("is_hit", [False, True], ids=["computed", "hit"])
async def test_hits_are_answered_while_a_large_answer_is_encoded(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch, *, in_parts: bool, is_hit: bool
) -> None:
    small, large = post("/v1/classify", classify("a")), post("/v1/classify", classify(*_MANY))
    encoder = BlockedEncoder()
    async with worker.connect() as one, worker.connect() as other:
        for request in [small, large] if is_hit else [small]:
            await other.send(request)
            assert (await other.response()).status == 200
        encoder.install(monkeypatch)

        await one.send(*([large[:50], large[50:]] if in_parts else [large]))
        async with asyncio.timeout(WAIT_LIMIT):
            await encoder.has_begun.wait()
        await other.send(small)
        found = await other.response()
        encoder.may_end.set()
        answer = await one.response()

    assert (found.status, answer.status) == (200, 200)
    assert len(answer.json()["results"]) == len(_MANY)


async def test_an_answer_of_many_pieces_arrives_whole_and_in_order(worker: RunningWorker) -> None:
    texts = [f"{number} {'x' * 8000}" for number in range(900)]
    request = post("/v1/classify", classify(*texts))
    async with worker.connect() as connection:
        for parts in ([request], [request[:50], request[50:]]):
            await connection.send(*parts, post("/v1/classify", classify("next")))
            large, small = await connection.response(), await connection.response()

            labels = [result["echo"] for result in large.json()["results"]]
            assert labels == texts
            assert small.json()["results"][0]["echo"] == "next"


async def test_a_peer_that_leaves_in_the_middle_leaves_nothing_behind(
    worker: RunningWorker,
) -> None:
    texts = [f"{number} {'x' * 8000}" for number in range(900)]
    async with worker.connect() as leaving, worker.connect() as other:
        await leaving.send(post("/v1/classify", classify(*texts)))
        assert (await leaving.head())[0] == 200
        leaving.reset()
        await other.send(post("/v1/classify", classify(*texts)))
        answer = await other.response()
        await other.send(post("/v1/classify", classify("a")))
        await other.response()

    assert len(answer.json()["results"]) == len(texts)
    await until(lambda: worker.parts.unsent.statistics().unsent_bytes == 0)
