"""Hugging Face's `InferenceClient` is answered by a model's task, over the same cache."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.types import ItemFailure, KeyId, Principal, Rule, TenantId
from sluicegate.wire.protocol import Task
from tests.support.api import KEY, NARROW_KEY, Api
from tests.support.dialects import answer_alike, sent, serve_models
from tests.support.documents import conforms, documents
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_GOOD = {"label": "good", "score": 0.75}
_BAD = {"label": "bad", "score": 0.25}
_X, _Y = {"label": "x", "score": 0.6}, {"label": "y", "score": 0.4}
_ENTITY = {"entity_group": "PER", "score": 0.9, "word": "Sarah", "start": 11, "end": 16}
_NONE = {"entity": "PER", "score": 0.9, "word": "Sarah", "start": 11, "end": 16}
_ASKED = {"question": "Who?", "context": "youme"}
_ME = {"answer": "me", "score": 0.5, "start": 3, "end": 5}
_YOU = {"answer": "you", "score": 0.25, "start": 0, "end": 3}
_NO_ANSWER = {"answer": "", "score": 0.375, "start": 0, "end": 0}
_VECTOR = [0.25, -0.5]
_COMPARED = {"source_sentence": "a text", "sentences": ["b", "c"]}
_CANDIDATES = {"candidate_labels": ["x", "y"]}
# As huggingface_hub 2.4.0 sends them.
_HEADERS = (
    *("Host: 127.0.0.1:8080", "Accept: */*", "Accept-Encoding: gzip, deflate"),
    *("Connection: keep-alive", "user-agent: unknown/None; hf_hub/2.4.0; python/3.11.7"),
    *(f"authorization: Bearer {KEY}", "content-type: application/json"),
    "X-Amzn-Trace-Id: 275d76cc-ac89-4b97-b034-103201be0b8f",
)
_CAPTURED = [
    sent(f"POST /models/{model}", _HEADERS, body)
    for model, body in (
        ("sentiment", b'{"inputs":"a text","parameters":{"function_to_apply":"softmax"}}'),
        (
            "topics",
            b'{"inputs":"a text","parameters":{"candidate_labels":["x","y"],"multi_label":false}}',
        ),
        ("entities", b'{"inputs":"a text","parameters":{"aggregation_strategy":"simple"}}'),
        (
            "answers",
            b'{"inputs":{"question":"Who?","context":"youme"},"parameters":{"top_k":2}}',
        ),
        ("minilm", b'{"inputs":"a text","normalize":true,"truncate":true}'),
        ("BAAI/minilm", b'{"inputs":["a text","b"],"dimensions":2}'),
        ("minilm/pipeline/feature-extraction", b'{"inputs":"a text"}'),
        (
            "minilm",
            b'{"inputs":{"source_sentence":"a text","sentences":["b","c"]},"parameters":{}}',
        ),
        ("none", b'{"inputs":"a text"}'),
    )
]


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        ("sentiment", {"inputs": "a text", "parameters": {}}, [[_GOOD, _BAD]]),
        ("sentiment", {"inputs": ["a text", "b"]}, [[_GOOD, _BAD]] * 2),
        ("sentiment", {"inputs": {"text": "a", "text_pair": "b"}}, [[_GOOD, _BAD]]),
        ("topics", {"inputs": "a text", "parameters": _CANDIDATES}, [_X, _Y]),
        ("topics", {"inputs": ["a", "b"], "parameters": _CANDIDATES}, [[_X, _Y]] * 2),
        ("entities", {"inputs": "a text", "parameters": {}}, [_ENTITY]),
        ("entities", {"inputs": "a", "parameters": {"aggregation_strategy": "none"}}, [_NONE]),
        ("entities", {"inputs": ["a"], "options": {"wait_for_model": True}}, [[_ENTITY]]),
        ("minilm", {"inputs": "a text", "normalize": True}, _VECTOR),
        ("minilm", {"inputs": ["a", "b"], "prompt_name": None}, [_VECTOR] * 2),
        ("minilm", {"inputs": _COMPARED, "parameters": {}}, [0.3125, 0.3125]),
        (
            "minilm",
            {"inputs": {"query": "q", "texts": ["a", "longer"]}},
            [{"index": 1, "score": 0.07}, {"index": 0, "score": 0.02}],
        ),
        ("answers", {"inputs": _ASKED}, [_ME, _YOU]),
        ("answers", {"inputs": [_ASKED, _ASKED], "top_k": 2}, [[_ME, _YOU]] * 2),
        (
            "answers",
            {"inputs": _ASKED, "parameters": {"top_k": 2, "handle_impossible_answer": True}},
            [_ME, _NO_ANSWER],
        ),
        ("answers", {"inputs": _ASKED, "parameters": {"handle_impossible_answer": True}}, _ME),
        ("BAAI/minilm", {"inputs": "a text"}, _VECTOR),
        ("BAAI/minilm/pipeline/sentence-similarity", {"inputs": _COMPARED}, [0.3125] * 2),
    ],
)
async def test_a_model_answers_by_its_task(
    client: httpx.AsyncClient, model: str, body: Any, expected: Any
) -> None:
    response = await client.post(f"/models/{model}", json=body, headers={"x-wait-for-model": "1"})

    assert (response.status_code, response.json()) == (200, expected)


@pytest.mark.parametrize(
    ("model", "parameters", "path", "native"),
    [
        ("sentiment", {"top_k": 1}, "classify", {"top_k": 1}),
        (
            "topics",
            _CANDIDATES,
            "zero-shot",
            {"labels": ["x", "y"], "hypothesis_template": "This example is {}."},
        ),
        ("entities", {}, "entities", {}),
        (
            "entities",
            {**_CANDIDATES, "threshold": 0.2, "multi_label": True},
            "entities",
            {"labels": ["x", "y"], "threshold": 0.2, "multi_label": True},
        ),
        ("minilm", {"dimensions": 2}, "embed", {"dimensions": 2}),
        (
            "answers",
            {
                "top_k": 2,
                "max_answer_len": 3,
                "max_seq_len": 64,
                "doc_stride": 5,
                "max_question_len": 9,
                "handle_impossible_answer": True,
                "align_to_words": False,
            },
            "answer",
            {
                "top_k": 2,
                "max_answer_tokens": 3,
                "max_row_tokens": 64,
                "overlap": 5,
                "align_to_words": False,
            },
        ),
    ],
)
async def test_an_answer_is_a_hit_through_the_native_route(
    client: httpx.AsyncClient, model: str, parameters: Any, path: str, native: Any
) -> None:
    item = _ASKED if path == "answer" else "a text"
    body = {"inputs": item, "parameters": parameters}
    answers = [await client.post(f"/models/{model}", json=body) for _ in range(3)]
    found = await client.post(f"/v1/{path}", json={"model": model, "input": item} | native)

    assert found.json()["usage"]["hit"] == 1, found.json()
    assert len({answer.content for answer in answers}) == 1
    assert "hit" in answers[-1].headers["cache-status"]


@pytest.mark.parametrize(
    ("model", "body", "status", "named"),
    [
        ("none", {"inputs": "a"}, 404, "none"),
        ("sentiment", {"inputs": "a", "parameters": {"stride": 1}}, 400, "stride"),
        ("entities", {"inputs": "a", "parameters": {"ignore_labels": []}}, 400, "ignore_labels"),
        ("entities", {"inputs": "a", "aggregation_strategy": "last"}, 400, "aggregation_strategy"),
        ("minilm", {"inputs": "a", "prompt_name": 7}, 400, "prompt_name"),
        ("minilm", {"inputs": [1, 2]}, 400, "send texts"),
        ("minilm", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "empty"),
        ("topics", {"inputs": "a"}, 400, "candidate_labels"),
        ("minilm", {"parameters": {}}, 400, "inputs"),
        ("minilm", {"inputs": "a", "parameters": [1]}, 400, "`parameters` must be an object"),
        ("minilm", {"inputs": "a", "parameters": {"inputs": "b"}}, 400, "`inputs` is given twice"),
        ("own/", {"inputs": "a"}, 400, "infer"),
        ("minilm/pipeline/fill-mask", {"inputs": "a"}, 400, "fill-mask"),
        ("minilm/pipeline/text-classification", {"inputs": "a"}, 400, "minilm"),
        ("both", {"inputs": "a"}, 400, "/pipeline/"),
        ("answers", {"inputs": "a"}, 400, "answer"),
        ("answers", {"inputs": {"question": "a"}}, 400, "context"),
        ("answers", {"inputs": _ASKED, "top_k": 101}, 400, "top_k"),
        ("answers", {"inputs": _ASKED, "max_answer_len": 0}, 400, "max_answer_len"),
        ("own", {"inputs": "a"}, 400, "infer"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    api: Api, client: httpx.AsyncClient, model: str, body: Any, status: int, named: str
) -> None:
    infos = api.scene.models.infos
    infos["both"] = msgspec.structs.replace(INFO, name="both", tasks=[Task.CLASSIFY, Task.ENTITIES])
    infos["own"] = msgspec.structs.replace(INFO, name="own", tasks=[Task.INFER])

    response = await client.post(f"/models/{model}", json=body)

    assert response.status_code == status
    assert set(response.json()) == {"error", "code"}
    assert named in response.json()["error"]


async def test_errors_are_strings(api: Api, client: httpx.AsyncClient) -> None:
    async def code(**more: Any) -> tuple[int, str]:
        response = await client.post("/models/sentiment", json={"inputs": "a"}, **more)
        error = response.json()["error"]
        assert isinstance(error, str)
        return response.status_code, response.json()["code"]

    wrong = {"authorization": "Bearer sk-nobody-has-this-one"}
    assert await code(headers=wrong) == (401, "authentication_failed")
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    assert await code(headers=narrow) == (403, "permission_denied")
    api.scene.runner.failure = ItemFailure(status=422, code="empty_input", detail="It is empty.")
    assert await code() == (422, "empty_input")
    api.limit(Rule(name="minute", unit="requests", capacity=1, window=60.0))
    await code()
    assert await code() == (429, "rate_limited")


async def test_a_model_is_described(client: httpx.AsyncClient) -> None:
    info = await client.get("/models/sentiment/info")
    health = await client.get("/models/sentiment/health")
    missing = await client.get("/models/none/info")
    nothing = await client.get("/models/sentiment")

    assert (info.status_code, info.json()["model_id"]) == (200, "sentiment")
    document = documents()["customers"]
    told = document["paths"]["/models/{model}/info"]["get"]["responses"]["200"]
    conforms(document, told["content"]["application/json"]["schema"], info.json())
    assert health.status_code == 200
    assert (missing.status_code, missing.json()["code"]) == (404, "model_not_found")
    assert (nothing.status_code, set(nothing.json())) == (404, {"error", "code"})


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_a_captured_request_alike(
    anyio_backend: str, tier: str
) -> None:
    answers, _ = await answer_alike(_CAPTURED, tier)

    assert [answer.split(b" ", 2)[1] for answer in answers] == [b"200"] * 8 + [b"404"]


@pytest.mark.parametrize("path", ["/models/topics", "/models/none", "/tei/topics", "/tei/none"])
async def test_a_key_does_not_learn_what_other_models_do(
    client: httpx.AsyncClient, path: str
) -> None:
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}

    response = await client.post(path, json={"inputs": "a"}, headers=narrow)

    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


@pytest.mark.parametrize(
    ("routes", "path", "status"),
    [
        ({"/models/minilm/*"}, "/models/minilm/sentiment", 404),
        ({"/models/minilm/*"}, "/models/minilm/x/sentiment/pipeline/text-classification", 404),
        ({"/models/minilm/*"}, "/models/minilm/pipeline/feature-extraction", 200),
        ({"/models/acme/*"}, "/models/acme/sentiment", 404),
        ({"/models/acme/sentiment"}, "/models/acme/sentiment", 200),
        ({"/models/acme/*", "/models/sentiment"}, "/models/acme/sentiment", 200),
        ({"/models/*"}, "/models/acme/sentiment", 200),
    ],
)
async def test_a_key_for_a_route_of_a_model_reaches_no_other_as_its_owner(
    api: Api, client: httpx.AsyncClient, routes: set[str], path: str, status: int
) -> None:
    bound = Principal(tenant=TenantId("acme"), key=KeyId("key_3"), routes=frozenset(routes))
    api.keys.replace({hash_key(KEY): bound})

    response = await client.post(path, json={"inputs": "a text"})

    assert response.status_code == status, response.json()
