"""Answers of many vectors are encoded in a thread, and are the same as those of few."""

import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from gateway.api import vectors
from gateway.dialects import cohere_tokens, hugging_face_tasks, tei_tokens
from gateway.types import ItemFailure
from tests.support.api import Api
from tests.support.dialects import routed_client, serve_models

pytestmark = pytest.mark.anyio
_TEXTS = [f"text {number}" for number in range(17)]
_LONG = 17 * 1024
_COMPARED = {"source_sentence": "a", "sentences": _TEXTS}


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with routed_client(api) as opened:
        yield opened


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads in which vectors are converted or compared, once for each."""
    found: list[threading.Thread] = []
    plain_pack, plain_dot = vectors._PACKERS["float"], hugging_face_tasks._dot

    def pack(values: Sequence[float]) -> bytes:
        found.append(threading.current_thread())
        return plain_pack(values)

    def dot(one: Sequence[float], other: Sequence[float]) -> float:
        found.append(threading.current_thread())
        return plain_dot(one, other)

    monkeypatch.setitem(vectors._PACKERS, "float", pack)
    monkeypatch.setattr(hugging_face_tasks, "_dot", dot)
    return found


@pytest.mark.parametrize("length", [_LONG, 9])
@pytest.mark.parametrize(
    ("path", "field", "result"),
    [
        ("/v1/tokenize", "text", b'{"ids":[1],"tokens":["a"],"offsets":[null]}'),
        ("/v1/detokenize", "tokens", b'{"text":"a"}'),
        ("/tei/minilm/decode", "ids", b'{"text":"a"}'),
    ],
)
async def test_tokens_of_long_texts_are_written_in_a_thread(
    api: Api,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    field: str,
    result: bytes,
    length: int,
) -> None:
    threads: list[threading.Thread] = []
    for module in (cohere_tokens, tei_tokens):
        monkeypatch.setattr(module, "_encode", lambda found: _encode_in(threads, found))
    api.scene.runner.result = lambda _: result
    infos = api.scene.models.infos
    infos["minilm"] = msgspec.structs.replace(infos["minilm"], shows_tokens=True)
    item = "a" * length if field == "text" else [5] * length

    name = {"model": "minilm"} if path.startswith("/v1/") else {}

    response = await client.post(path, json=name | {field: item})

    assert response.status_code == 200, response.text
    assert [thread is threading.main_thread() for thread in threads] == [length < _LONG]


def _encode_in(threads: list[threading.Thread], found: Any) -> bytes:
    threads.append(threading.current_thread())
    return msgspec.json.encode(found)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embed", {"input": _TEXTS, "encoding_format": "base64"}),
        ("/v1/embed", {"input": _TEXTS, "encoding_format": "bytes"}),
        ("/v1/embeddings", {"input": _TEXTS, "encoding_format": "base64"}),
        ("/v2/embed", {"texts": _TEXTS[:9], "embedding_types": ["base64", "int8"]}),
        ("/models/minilm", {"inputs": _COMPARED}),
        ("/tei/minilm/similarity", {"inputs": _COMPARED}),
    ],
)
async def test_many_vectors_are_encoded_in_a_thread(
    api: Api, client: httpx.AsyncClient, threads: list[threading.Thread], path: str, body: Any
) -> None:
    named = body if "inputs" in body else body | {"model": "minilm"}

    first = await client.post(path, json=named)
    hit = await client.post(path, json=named)

    assert (first.status_code, hit.status_code) == (200, 200)
    assert "hit" in hit.headers["cache-status"]
    assert threads
    assert threading.main_thread() not in threads
    assert [event.status for event in api.events.events] == [200, 200]


async def test_few_vectors_are_encoded_at_once(
    client: httpx.AsyncClient, threads: list[threading.Thread]
) -> None:
    body = {"model": "minilm", "input": _TEXTS[:16], "encoding_format": "base64"}

    await client.post("/v1/embeddings", json=body)

    assert set(threads) == {threading.main_thread()}


async def test_a_failure_among_many_is_what_it_is(api: Api, client: httpx.AsyncClient) -> None:
    api.scene.runner.failure = ItemFailure(status=422, code="empty_input", detail="It is empty.")
    body = {"model": "minilm", "input": _TEXTS, "encoding_format": "base64"}

    response = await client.post("/v1/embeddings", json=body)

    assert (response.status_code, response.json()["error"]["code"]) == (400, "empty_input")
