"""Cohere's clients are answered in their form by the same cache, limits and events."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sluicegate.gateway.types import ItemFailure, Rule
from tests.support.api import KEY, Api, problem
from tests.support.dialects import answer_alike, sent, serve_models
from tests.support.documents import conforms, documents

pytestmark = pytest.mark.anyio
_EMBED = {"model": "minilm", "texts": ["a text"], "input_type": "search_query"}
_RERANK = {"model": "minilm", "query": "q", "documents": ["short", "longer", "the longest"]}
_CLASSIFY = {"model": "sentiment", "inputs": ["a text", "b"]}
# As cohere 7.3.1 sends them.
_HEADERS = (
    *("Host: 127.0.0.1:8080", "Accept: */*", "Accept-Encoding: gzip, deflate"),
    *("Connection: keep-alive", "User-Agent: cohere/7.3.1", "X-Fern-Language: Python"),
    *("X-Fern-Runtime: python/3.11.7", "X-Fern-Platform: linux/6.18.44"),
    *("X-Fern-SDK-Name: cohere", "X-Fern-SDK-Version: 7.3.1"),
    *(f"Authorization: Bearer {KEY}", "content-type: application/json"),
)
_CAPTURED = [
    sent(
        "POST /v2/embed",
        _HEADERS,
        b'{"texts":["a text"],"model":"minilm","input_type":"search_query","output_dimension":2,'
        b'"embedding_types":["float","int8","base64"],"truncate":"END"}',
    ),
    sent(
        "POST /v2/rerank",
        _HEADERS,
        b'{"model":"minilm","query":"q","documents":["a text","another"],"top_n":1}',
    ),
    sent("POST /v1/classify", _HEADERS, b'{"inputs":["a text"],"model":"sentiment"}'),
    sent("POST /v1/classify", _HEADERS, b'{"model":"sentiment","input":"a text"}'),
    sent("POST /v2/embed", _HEADERS, b'{"texts":["a"],"model":"none"}'),
    sent("POST /v2/rerank", _HEADERS, b'{"model":"minilm"}'),
]


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


def documented(path: str, answer: Any) -> None:
    document = documents()["customers"]
    told = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    conforms(document, told["schema"], answer)


async def test_vectors_come_in_every_type_that_is_asked_for(client: httpx.AsyncClient) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    body = _EMBED | {"texts": ["a", "b"], "embedding_types": kinds}

    response = await client.post("/v2/embed", json=body)

    packed = base64.b64encode(struct.pack("<2f", 0.25, -0.5)).decode()
    answer = response.json()
    assert answer == {
        "id": response.headers["x-request-id"],
        "response_type": "embeddings_by_type",
        "embeddings": {
            "float": [[0.25, -0.5]] * 2,
            "int8": [[64, -127]] * 2,
            "uint8": [[192, 1]] * 2,
            "binary": [[0]] * 2,
            "ubinary": [[128]] * 2,
            "base64": [packed] * 2,
        },
        "texts": ["a", "b"],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 10}},
    }
    documented("/v2/embed", answer)
    one = await client.post("/v2/embed", json=_EMBED)
    assert one.json()["embeddings"] == {"float": [[0.25, -0.5]]}


async def test_documents_are_put_in_order(client: httpx.AsyncClient) -> None:
    native = (await client.post("/v1/rerank", json=_RERANK)).json()["results"]

    answer = (await client.post("/v2/rerank", json=_RERANK | {"top_n": 2})).json()

    ranked = [(one["index"], one["relevance_score"]) for one in answer["results"]]
    assert ranked == [(one["index"], one["score"]) for one in native[:2]]
    assert ranked[0][0] == 2
    assert answer["meta"]["billed_units"] == {"search_units": 1}
    documented("/v2/rerank", answer)


async def test_texts_are_classified_at_the_path_of_the_native_route(
    api: Api, client: httpx.AsyncClient
) -> None:
    answer = (await client.post("/v1/classify", json=_CLASSIFY)).json()
    native = await client.post("/v1/classify", json={"model": "sentiment", "input": "a text"})

    assert answer["classifications"][0] == {
        "id": "0",
        "input": "a text",
        "prediction": "good",
        "predictions": ["good"],
        "confidence": 0.75,
        "confidences": [0.75],
        "labels": {"good": {"confidence": 0.75}, "bad": {"confidence": 0.25}},
        "classification_type": "single-label",
    }
    assert answer["meta"]["billed_units"] == {"classifications": 2}
    assert native.json()["usage"]["hit"] == 1
    assert len(api.scene.runner.computed) == 2


async def test_an_answer_is_a_hit_through_other_routes(api: Api, client: httpx.AsyncClient) -> None:
    await client.post("/v1/embed", json={"model": "minilm", "input": "a text"})
    found = await client.post("/v2/embed", json=_EMBED)
    other = await client.post("/v1/embeddings", json={"model": "minilm", "input": "a text"})

    assert "hit" in found.headers["cache-status"]
    assert "hit" in other.headers["cache-status"]
    assert len(api.scene.runner.computed) == 1


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v2/embed", _EMBED | {"images": ["data:"]}, "images"),
        ("/v2/embed", _EMBED | {"truncate": "START"}, "truncate"),
        ("/v2/embed", _EMBED | {"embedding_types": ["hex"]}, "embedding_types"),
        ("/v2/embed", _EMBED | {"embedding_types": ["int8"] * 7}, "embedding_types"),
        ("/v2/embed", _EMBED | {"texts": []}, "empty"),
        ("/v2/rerank", _RERANK | {"max_tokens_per_doc": 100}, "max_tokens_per_doc"),
        ("/v2/rerank", _RERANK | {"return_documents": True}, "return_documents"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    client: httpx.AsyncClient, path: str, body: Any, named: str
) -> None:
    response = await client.post(path, json=body)

    assert response.status_code == 400
    error = response.json()
    assert set(error) == {"message", "code", "id"}
    assert named in error["message"]


@pytest.mark.parametrize(
    ("more", "named"),
    [({"examples": [{"text": "a", "label": "b"}]}, "zero-shot"), ({"preset": "p"}, "preset")],
)
async def test_examples_are_refused_with_what_to_do(
    client: httpx.AsyncClient, more: Any, named: str
) -> None:
    response = await client.post("/v1/classify", json=_CLASSIFY | more)

    assert named in problem(response, 400, "invalid_request")


async def test_native_errors_stay_as_they_are(client: httpx.AsyncClient) -> None:
    both = {"model": "sentiment", "input": "a", "on_error": "no"}
    response = await client.post("/v1/classify", json=both)

    assert "on_error" in problem(response, 400, "invalid_request")


async def test_errors_have_a_message(api: Api, client: httpx.AsyncClient) -> None:
    wrong = {"authorization": "Bearer sk-nobody-has-this-one"}
    send = client.post

    assert (await send("/v2/embed", json=_EMBED, headers=wrong)).status_code == 401
    unknown = await send("/v2/embed", json=_EMBED | {"model": "none"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")
    assert unknown.json()["id"] == unknown.headers["x-request-id"]
    api.scene.runner.failure = ItemFailure(status=422, code="empty_input", detail="It is empty.")
    refused = await send("/v2/embed", json=_EMBED | {"texts": [""]})
    assert (refused.status_code, refused.json()["message"]) == (422, "Item 0: It is empty.")
    api.limit(Rule(name="minute", unit="requests", capacity=1, window=60.0))
    await send("/v2/rerank", json=_RERANK)
    limited = await send("/v2/rerank", json=_RERANK)
    assert (limited.status_code, limited.json()["code"]) == (429, "rate_limited")
    assert limited.headers["retry-after-ms"]


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_a_captured_request_alike(
    anyio_backend: str, tier: str
) -> None:
    answers, fast_path = await answer_alike(_CAPTURED, tier)

    statuses = [answer.split(b" ", 2)[1] for answer in answers]
    assert statuses == [b"200"] * 4 + [b"404", b"400"]
    for request in (_CAPTURED[0], _CAPTURED[2]):
        replayed = fast_path.api.fast_path.replay(request, b"")
        assert (replayed is not None) == (tier == "memory")
