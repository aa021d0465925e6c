"""OpenAI's clients are answered in their form by the same cache, limits and events."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.dialects.openai_errors import OPENAI_ERRORS
from sluicegate.gateway.errors import IdempotencyKeyReused, InvalidItem
from sluicegate.gateway.types import ItemFailure, Rule
from sluicegate.wire.protocol import Task
from tests.support.api import Api
from tests.support.documents import conforms, documents
from tests.support.entry_points import EntryPoint
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_MODEL = msgspec.structs.replace(INFO, name="minilm", tasks=[Task.EMBED, Task.RERANK], dimensions=2)
_RESULT = b'{"embedding":[0.25,-0.5]}'
_PACKED = base64.b64encode(struct.pack("<2f", 0.25, -0.5)).decode()
_BODY = {"model": "minilm", "input": "a text"}
# As openai 3.54.0 sends them.
_HEAD = (
    b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nauthorization: Bearer sk-the-key-of-a-caller\r\n"
    b"accept: application/json\r\ncontent-type: application/json\r\n"
    b"user-agent: OpenAI/Python 3.54.0\r\nx-stainless-lang: python\r\n"
    b"x-stainless-package-version: 3.54.0\r\nx-stainless-os: Linux\r\n"
    b"x-stainless-arch: x64\r\nx-stainless-runtime: CPython\r\n"
    b"x-stainless-runtime-version: 3.11.7\r\nx-stainless-async: false\r\n"
    b"x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n"
)
_CAPTURED = [
    _HEAD + b"Content-Length: 62\r\n\r\n"
    b'{"model":"minilm","input":"a text","encoding_format":"base64"}',
    _HEAD + b"Content-Length: 99\r\n\r\n"
    b'{"model":"minilm","input":["a text","another"],"user":"u","dimensions":2,'
    b'"encoding_format":"float"}',
    _HEAD + b"Content-Length: 59\r\n\r\n"
    b'{"model":"minilm","input":[1,2],"encoding_format":"base64"}',
]


def embedding_api(api: Api) -> Api:
    api.scene.models.infos["minilm"] = _MODEL
    api.scene.runner.result = lambda _: _RESULT
    return api


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return embedding_api(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


def error_of(response: httpx.Response, status: int, kind: str, code: str) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (status, kind, code), error
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    return error


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_vectors_come_in_the_format_that_is_asked_for(
    client: httpx.AsyncClient, encoding: str | None
) -> None:
    more = {} if encoding is None else {"encoding_format": encoding}
    body = _BODY | more | {"input": ["a", "b"], "user": "u"}

    answer = (await client.post("/v1/embeddings", json=body)).json()

    vector = _PACKED if encoding == "base64" else [0.25, -0.5]
    assert answer == {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": vector} for i in (0, 1)],
        "model": "minilm",
        "usage": {"prompt_tokens": 10, "total_tokens": 10},
    }
    document = documents()["customers"]
    operation = document["paths"]["/v1/embeddings"]["post"]
    conforms(
        document, operation["responses"]["200"]["content"]["application/json"]["schema"], answer
    )


async def test_an_answer_is_a_hit_through_the_native_route_and_the_other_way_round(
    api: Api, client: httpx.AsyncClient
) -> None:
    body = _BODY | {"dimensions": 2}
    await client.post("/v1/embeddings", json=body)
    native = await client.post("/v1/embed", json=body)
    await client.post("/v1/embed", json={"model": "minilm", "input": "another"})
    other = await client.post("/v1/embeddings", json=_BODY | {"input": "another"})

    assert native.json()["usage"]["hit"] == 1
    assert "hit" in other.headers["cache-status"]
    assert len(api.scene.runner.computed) == 2
    assert [event.task for event in api.events.events] == [Task.EMBED] * 4


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_hits_report_the_tokens_that_the_text_has(
    api: Api, client: httpx.AsyncClient, tier: str
) -> None:
    api.scene.cache.has_memory = tier == "memory"
    answers = [await client.post("/v1/embeddings", json=_BODY) for _ in range(4)]

    assert [one.json()["usage"]["prompt_tokens"] for one in answers] == [5] * 4
    assert [event.usage.tokens for event in api.events.events] == [5, 0, 0, 0]


@pytest.mark.parametrize("inputs", [[1, 2], [[1, 2], [3]], ["a", 1]])
async def test_tokens_are_refused_with_what_to_do(client: httpx.AsyncClient, inputs: Any) -> None:
    response = await client.post("/v1/embeddings", json=_BODY | {"input": inputs})

    error = error_of(response, 400, "invalid_request_error", "invalid_request")
    assert "send texts" in error["message"]


@pytest.mark.parametrize("more", [{"input": []}, {"encoding_format": "hex"}, {"temperature": 1}])
async def test_what_does_not_fit_is_a_bad_request(client: httpx.AsyncClient, more: Any) -> None:
    response = await client.post("/v1/embeddings", json=_BODY | more)

    error_of(response, 400, "invalid_request_error", "invalid_request")


async def test_errors_are_in_the_form_of_the_dialect(api: Api, client: httpx.AsyncClient) -> None:
    send = client.post
    wrong = {"authorization": "Bearer sk-nobody-has-this-one"}
    late = {"x-request-timeout": "soon"}

    error_of(
        await send("/v1/embeddings", json=_BODY, headers=wrong),
        401,
        "authentication_error",
        "invalid_api_key",
    )
    error_of(
        await send("/v1/embeddings", json=_BODY, headers=late),
        400,
        "invalid_request_error",
        "invalid_request",
    )
    unknown = await send("/v1/embeddings", json=_BODY | {"model": "none"})
    assert error_of(unknown, 404, "invalid_request_error", "model_not_found")["param"] == "model"
    other = await send("/v1/embeddings", json=_BODY | {"model": "sentiment"})
    error_of(other, 400, "invalid_request_error", "task_not_supported")
    error_of(await client.get("/v1/embeddings"), 405, "invalid_request_error", "method_not_allowed")
    api.scene.runner.failure = ItemFailure(status=422, code="empty_input", detail="It is empty.")
    refused = await send("/v1/embeddings", json=_BODY | {"input": ["", "b"]})
    assert error_of(refused, 400, "invalid_request_error", "empty_input")["param"] == "input[0]"
    assert api.events.events[-1].status == 400
    api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="Busy.")
    busy = await send("/v1/embeddings", json=_BODY)
    error_of(busy, 503, "server_error", "overloaded")
    assert busy.headers["retry-after"] == "1"


async def test_a_refusal_over_a_limit_says_when_to_try_again(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.limit(Rule(name="minute", unit="requests", capacity=1, window=60.0))
    await client.post("/v1/embeddings", json=_BODY)

    refused = await client.post("/v1/embeddings", json=_BODY)

    error_of(refused, 429, "rate_limit_error", "rate_limit_exceeded")
    for name in ("retry-after", "retry-after-ms", "ratelimit", "x-ratelimit-reset-requests"):
        assert refused.headers[name]


async def test_errors_of_models_are_problems_that_the_client_reads(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get("/v1/models/none")

    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert (problem["status"], problem["code"]) == (404, "model_not_found")
    assert problem["error"]["message"] == problem["detail"]


async def test_models_are_listed_for_the_clients_of_openai_and_cohere(
    client: httpx.AsyncClient,
) -> None:
    listed = (await client.get("/v1/models")).json()

    assert [(one["id"], one["object"], one["created"]) for one in listed["data"]] == [
        ("sentiment", "model", 0),
        ("other", "model", 0),
    ]
    assert listed["models"][0] == {
        "name": "sentiment",
        "endpoints": ["classify"],
        "context_length": 256,
    }


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_a_captured_request_alike(
    anyio_backend: str, tier: str
) -> None:
    """Errors, hits of memory and of Redis, and replays of whole requests have the same bytes."""
    points = application, fast_path = EntryPoint(fast=False), EntryPoint(fast=True)
    for point in points:
        embedding_api(point.api).scene.cache.has_memory = tier == "memory"
    more = [b'{"input":"a text","model":"minilm"}', b'{"input":"a","model":"none"}']
    requests = _CAPTURED + [
        _HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in more
    ]
    for request in requests * 5:
        expected, found = await application.send(request), await fast_path.send(request)

        assert found == expected
        assert fast_path.events() == application.events()
    assert (
        len(fast_path.api.fast_path.heads._heads) == 1
    )  # they differ by the length of the body alone
    replayed = fast_path.api.fast_path.replay(_CAPTURED[0], b"")
    assert (replayed is not None) == (tier == "memory")


def test_a_key_of_another_request_is_no_item_that_cannot_be_answered() -> None:
    assert OPENAI_ERRORS.status(IdempotencyKeyReused("Choose a new key.")) == 422
    assert OPENAI_ERRORS.status(InvalidItem("Empty.", index=0, item_code="empty_input")) == 400
