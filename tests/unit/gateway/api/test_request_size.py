"""A request's products and its answer are bounded before anything is made of them."""

import asyncio
import json
import math
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.api.body_reader import BodyReader
from sluicegate.gateway.api.native_routes import ROUTE_OF
from sluicegate.gateway.api.request_size import RequestSize
from sluicegate.gateway.api.request_state import ParsedBody, RequestState
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.errors import ExpansionTooLarge
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.types import RequestId
from sluicegate.wire.protocol import Task
from testing.waiting import until
from tests.support.api import Api
from tests.support.dialects import serve_models
from tests.support.inference_scene import INFO, Models

pytestmark = pytest.mark.anyio
MB = 1_000_000


def models(**fields: Any) -> Models:
    return Models(msgspec.structs.replace(INFO, name="m", tasks=list(Task), **fields))


def parsed(task: Task, body: dict[str, Any], served: Models | None = None) -> ParsedBody:
    state = RequestState(
        RequestId("req_1"),
        route=ROUTE_OF[task],
        runtime=compile_runtime(Document(), 1),
        started=0.0,
    )
    state.parameters = ("m",) * len(state.route.names)
    named = {} if task is Task.INFER else {"model": "m"}
    return BodyReader(served or models()).read(state, json.dumps(named | body).encode())


def refusal(task: Task, body: dict[str, Any], served: Models | None = None) -> str:
    with pytest.raises(ExpansionTooLarge) as refused:
        parsed(task, body, served)
    return refused.value.detail


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    api = serve_models(Api())
    infos = api.scene.models.infos
    infos["minilm"] = msgspec.structs.replace(infos["minilm"], shows_tokens=True)
    return api


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def test_a_template_of_six_million_blanks_is_refused_before_it_is_copied(
    api: Api, client: httpx.AsyncClient
) -> None:
    body = {
        "model": "topics",
        "input": "a",
        "labels": [f"label {number}" for number in range(256)],
        "hypothesis_template": "{}x" + " " * 6_000_000,
    }

    tracemalloc.start()
    answer = await client.post("/v1/zero-shot", json=body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert answer.status_code == 422
    assert answer.json()["code"] == "expansion_too_large"
    assert "`hypothesis_template` has 6,000,003 bytes" in answer.json()["detail"]
    assert api.scene.runner.begun == 0
    assert peak < 64 * MB


async def test_texts_by_long_labels_are_refused_by_their_product(
    api: Api, client: httpx.AsyncClient
) -> None:
    labels = [f"{number:03}".rjust(4000) for number in range(256)]
    body = {"model": "topics", "input": [f"t{number}" for number in range(512)], "labels": labels}

    answer = await client.post("/v1/zero-shot", json=body)

    assert answer.status_code == 422
    assert "512 inputs x 256 labels of up to 4,000 bytes" in answer.json()["detail"]
    assert "request.max_expanded_bytes" in answer.json()["detail"]
    assert api.scene.runner.begun == 0


async def test_the_tokens_of_many_texts_are_refused_by_their_answer(
    api: Api, client: httpx.AsyncClient
) -> None:
    texts = ["word " * 800] * 2000

    answer = await client.post("/tei/minilm/tokenize", json={"inputs": texts})

    assert answer.status_code == 422
    assert answer.json()["error"].startswith("the tokens of 8,006,000 bytes of text")
    assert api.scene.runner.begun == 0


@pytest.mark.parametrize(
    ("task", "body", "named"),
    [
        (
            Task.CHOOSE,
            {"input": {"prompt": "p" * MB, "choices": ["a"] * 200}},
            "1 input x up to 200 choices expand to",
        ),
        (
            Task.RERANK,
            {"query": "q" * MB, "documents": ["d"] * 100},
            "100 documents x a query of 1,000,000 bytes expand to",
        ),
        (Task.ENTITIES, {"input": ["A " * MB, "B " * MB]}, "the entities of 4,000,"),
        (
            Task.ENTITIES,
            {"input": ["A " * 10_000] * 100, "labels": ["a", "b", "c"], "multi_label": True},
            "the entities of 2,000,",
        ),
        (Task.ENTITIES, {"input": "a", "labels": ["x" * 4097]}, "a label has 4,097 bytes"),
        (
            Task.ENTITIES,
            {"input": ["A " * 20_000] * 100, "relations": ["a", "b", "c", "d"]},
            "the entities and relations of 4,000,",
        ),
        (Task.ENTITIES, {"input": "a", "relations": ["x" * 4097]}, "a label has 4,097 bytes"),
        (
            Task.ENTITIES,
            {"input": "a", "labels": ["x"], "descriptions": {"x": "y" * 4097}},
            "a label has 4,097 bytes",
        ),
        (Task.TOKENIZE, {"input": ["a b " * 10_000] * 100}, "the tokens of 4,000,"),
        (
            Task.ANSWER,
            {"input": {"question": "q", "context": "c" * MB}, "top_k": 100},
            "1 input x 100 answers could have an answer of",
        ),
        (
            Task.ZERO_SHOT,
            {"input": "a", "labels": ["x" * 4097]},
            "a label has 4,097 bytes; at most 4,096 are allowed (`request.max_label_bytes`)",
        ),
        (
            Task.ZERO_SHOT,
            {"input": "a", "labels": ["x"], "hypothesis_template": "é" * 3000 + "{}"},
            "`hypothesis_template` has 6,002 bytes",
        ),
    ],
)
def test_each_task_names_its_product(task: Task, body: dict[str, Any], named: str) -> None:
    assert named in refusal(task, body)


def test_the_answer_of_a_model_with_many_numbers_or_labels_is_bounded() -> None:
    texts = {"input": ["a"] * 2000}
    many = models(dimensions=8192, labels=[f"label {number}" for number in range(2000)])

    assert "2,000 inputs x vectors of 8,192 numbers" in refusal(Task.EMBED, texts, many)
    assert "2,000 inputs x 2,000 labels" in refusal(Task.CLASSIFY, texts, many)
    assert parsed(Task.EMBED, texts | {"dimensions": 256}, many).held_bytes
    assert parsed(Task.CLASSIFY, texts | {"top_k": 5}, many).held_bytes


@pytest.mark.parametrize(
    ("task", "body"),
    [
        (Task.EMBED, {"input": ["a sentence of some words"] * 2048}),
        (Task.RERANK, {"query": "q" * 2000, "documents": ["d" * 1000] * 1000}),
        (Task.ZERO_SHOT, {"input": ["t" * 2000] * 2048, "labels": ["a label"] * 77}),
        (Task.ZERO_SHOT, {"input": ["t" * 9000] * 64, "labels": ["l" * 200] * 256}),
        (Task.ENTITIES, {"input": ["A text. " * 60] * 2048}),
        (Task.ANSWER, {"input": [{"question": "q" * 90, "context": "c" * 9000}] * 300}),
        (Task.ENTITIES, {"input": ["A text. " * 60] * 512, "labels": ["a label"] * 60}),
        (Task.ENTITIES, {"input": ["A text. " * 60] * 64, "labels": ["a label"], "flat": False}),
        (Task.ENTITIES, {"input": ["A text. " * 60] * 512, "relations": ["lives in"] * 20}),
        (Task.TOKENIZE, {"input": ["word " * 400] * 1000}),
        (Task.TOKENIZE, {"input": ["word " * 800] * 1900, "counts_only": True}),
        (Task.CLASSIFY, {"input": ["t" * 3000] * 2048}),
    ],
)
def test_what_people_ask_for_is_within_the_bounds(task: Task, body: dict[str, Any]) -> None:
    served = models(dimensions=3072, labels=[f"label {number}" for number in range(150)])

    assert parsed(task, body, served).held_bytes > 0


def test_short_requests_hold_nothing_and_are_charged_as_they_are() -> None:
    body = {"input": ["a text", "another"], "labels": ["sports", "business"]}

    assert parsed(Task.ZERO_SHOT, body).held_bytes == 0
    assert RequestSize(1_000, 2_000).charged_items(2) == 2


def test_each_64_kib_of_expansion_and_answer_counts_as_an_item() -> None:
    size = RequestSize(expanded_bytes=65_536, answer_bytes=10 * 65_536)

    assert size.charged_items(3) == 11
    assert size.charged_items(30) == 30


async def test_a_large_request_waits_for_memory_unless_too_many_do(
    api: Api, client: httpx.AsyncClient
) -> None:
    bounds = api.document().request
    memory = api.processor.memory
    memory.limit_bytes = 2 * (bounds.max_expanded_bytes + bounds.max_answer_bytes)
    held = [(memory.limit_bytes - memory.used_bytes) * 8 // 9]
    assert memory.try_hold("another", held[0])
    held.append((memory.limit_bytes - memory.used_bytes) * 8 // 9)
    assert memory.try_hold("a third", held[1])
    large = {"model": "minilm", "query": "q", "documents": ["d" * 30_000] * 200}
    small = {"model": "minilm", "query": "q", "documents": ["d"]}

    others = [asyncio.create_task(memory.hold(n, held[0], math.inf)) for n in range(256)]
    await until(lambda: memory.waits == len(others))
    refused = await client.post("/v1/rerank", json=large)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    answered = await client.post("/v1/rerank", json=small)
    waiting = asyncio.create_task(client.post("/v1/rerank", json=large))
    await until(lambda: memory.waits == 1)
    memory.release("another", held[0])
    admitted = await waiting

    assert (refused.status_code, answered.status_code, admitted.status_code) == (503, 200, 200)
    assert refused.json()["code"] == "overloaded"
    assert "Large requests" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "1"
    assert memory.used_bytes == held[1]


def test_token_vectors_count_for_each_token_that_may_be_read() -> None:
    served = models(dimensions=128, max_tokens=512)
    fields = {"input": ["word " * 2000] * 200}

    parsed(Task.EMBED, fields | {"outputs": ["dense", "sparse"]}, served)

    assert "200 inputs" in refusal(Task.EMBED, fields | {"outputs": ["multi_vector"]}, served)
