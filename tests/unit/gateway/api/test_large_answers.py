"""Large answers of every kind are encoded in a thread, within the room for them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.types import ItemFailure
from tests.support.api import KEY, Api
from tests.support.dialects import sent, serve_models
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio
_TEXTS = [f"text {number}" for number in range(40)]
_VECTOR = msgspec.json.encode({"embedding": [0.25] * 1000})
_LABELS = msgspec.json.encode({"labels": [{"label": "x" * 4000, "score": 0.5}]})
_RANKED = b'{"score":0.5}'
_TOKENS = msgspec.json.encode(
    {"count": 500, "fits": True, "windows": 1, "ids": [1] * 500, "tokens": ["word"] * 500}
    | {"offsets": [[0, 4]] * 500}
)


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


@pytest.fixture
def threads(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads in which answers are encoded, once for each."""
    found: list[threading.Thread] = []

    def noted(encode: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            found.append(threading.current_thread())
            return encode(*arguments)

        return note

    for route in api.routes.routes:
        monkeypatch.setattr(route, "encode", noted(route.encode))
    return found


@pytest.mark.parametrize("tier", ["memory", "redis"])
@pytest.mark.parametrize(
    ("path", "body", "result"),
    [
        ("/v1/classify", {"model": "sentiment", "input": _TEXTS}, _LABELS),
        ("/v1/embed", {"model": "minilm", "input": _TEXTS}, _VECTOR),
        (
            "/v1/embed",
            {"model": "minilm", "input": _TEXTS, "encoding_format": "bytes"},
            _VECTOR,
        ),
        ("/v1/embeddings", {"model": "minilm", "input": _TEXTS}, _VECTOR),
        (
            "/v2/embed",
            {"model": "minilm", "texts": _TEXTS, "embedding_types": ["base64", "int8"]},
            _VECTOR,
        ),
        (
            "/v1/rerank",
            {
                "model": "minilm",
                "query": "a",
                "documents": [f"{text} {'x' * 4000}" for text in _TEXTS],
                "return_documents": True,
            },
            _RANKED,
        ),
        ("/v1/tokenize", {"model": "minilm", "input": _TEXTS}, _TOKENS),
        ("/models/minilm", {"inputs": _TEXTS}, _VECTOR),
        ("/tei/minilm/embed", {"inputs": _TEXTS}, _VECTOR),
        ("/tei/minilm/tokenize", {"inputs": _TEXTS}, _TOKENS),
        (
            "/tei/minilm/similarity",
            {"inputs": {"source_sentence": "a", "sentences": _TEXTS}},
            _VECTOR,
        ),
    ],
)
async def test_an_answer_is_encoded_in_a_thread_where_it_is_large(
    api: Api,
    client: httpx.AsyncClient,
    threads: list[threading.Thread],
    path: str,
    body: dict[str, Any],
    result: bytes,
    tier: str,
) -> None:
    api.scene.runner.result = lambda _: result
    api.scene.cache.has_memory = tier == "memory"
    field = next(name for name in ("input", "inputs", "texts", "documents") if name in body)
    inner = body[field]
    few = {**inner, "sentences": ["b"]} if isinstance(inner, dict) else [inner[0][:6]]

    first = await client.post(path, json=body)
    hit = await client.post(path, json=body)
    found, others = list(threads), await client.post(path, json=body | {field: few})

    assert [one.status_code for one in (first, hit, others)] == [200, 200, 200], first.text
    assert "hit" in hit.headers["cache-status"]
    assert len(found) == 2
    assert threading.main_thread() not in found
    assert threads[2:] == [threading.main_thread()]
    assert [event.status for event in api.events.events] == [200, 200, 200]


async def test_many_small_items_are_encoded_in_a_thread_too(
    api: Api, client: httpx.AsyncClient, threads: list[threading.Thread]
) -> None:
    body = {"model": "sentiment", "input": [f"text {number}" for number in range(1024)]}
    api.scene.runner.result = lambda _: b'{"labels":[]}'

    await client.post("/v1/classify", json=body)

    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_a_failure_among_many_is_what_it_is(api: Api, client: httpx.AsyncClient) -> None:
    api.scene.runner.failure = ItemFailure(status=422, code="empty_input", detail="It is empty.")
    body = {"model": "minilm", "input": ["x" * 5000] * 40, "encoding_format": "base64"}

    response = await client.post("/v1/embeddings", json=body)

    assert (response.status_code, response.json()["error"]["code"]) == (400, "empty_input")


@pytest.mark.parametrize("fast", [True, False])
async def test_what_an_answer_held_is_free_once_it_is_sent(*, fast: bool) -> None:
    entry = EntryPoint(fast=fast)
    entry.api.scene.runner.result = lambda _: b'"%b"' % (b"x" * 200_000)
    body = msgspec.json.encode({"model": "sentiment", "input": "a"})
    request = sent("POST /v1/classify", ["Host: w", f"Authorization: Bearer {KEY}"], body)

    answers = [await _answer(entry, request) for _ in range(3)]

    assert [answer.count(b"x" * 200_000) for answer in answers] == [1, 1, 1]
    assert entry.api.unsent.statistics().unsent_bytes == 0


async def _answer(entry: EntryPoint, request: bytes) -> bytes:
    """Return an answer, which a thread encodes."""
    entry.protocol.data_received(request)
    await asyncio.sleep(0)
    while entry.state.tasks:  # noqa: ASYNC110 - the server has no event for their end
        await asyncio.sleep(0)
    answer = bytes(entry.transport.written)
    entry.transport.written.clear()
    return answer
