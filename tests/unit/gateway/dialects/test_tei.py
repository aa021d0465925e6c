"""TEI's clients are answered below the path of a model, with TEI's statuses."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.types import ItemFailure, Rule
from sluicegate.wire.protocol import Task
from tests.support.api import KEY, NARROW_KEY, Api
from tests.support.dialects import answer_alike, sent, serve_models
from tests.support.idempotency import AlwaysKeyed, NotedKey
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_LABELS = [{"label": "good", "score": 0.75}, {"label": "bad", "score": 0.25}]
_VECTOR = [0.25, -0.5]
_WEIGHTS = [{"index": 3, "value": 0.5}, {"index": 7, "value": 0.25}]
_RANK = {"query": "q", "texts": ["a", "longer"]}
_RANKED = [{"index": 1, "score": 0.07}, {"index": 0, "score": 0.02}]


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("minilm/embed", {"inputs": "a", "truncate": None, "normalize": True}, [_VECTOR]),
        ("minilm/embed", {"inputs": ["a", "b"], "truncation_direction": "Right"}, [_VECTOR] * 2),
        ("minilm", {"inputs": ["a"]}, [_VECTOR]),
        ("minilm/embed_sparse", {"inputs": ["a", "b"]}, [_WEIGHTS] * 2),
        ("minilm/embed_sparse", {"inputs": "a"}, [_WEIGHTS]),
        ("sentiment/predict", {"inputs": "a", "raw_scores": False}, _LABELS),
        ("sentiment/predict", {"inputs": ["a", "b"]}, _LABELS),
        ("sentiment/predict", {"inputs": [["a"], ["a", "b"]]}, [_LABELS] * 2),
        ("sentiment", {"inputs": "a", "parameters": {}}, _LABELS),
        ("minilm/rerank", _RANK | {"raw_scores": False}, _RANKED),
        (
            "minilm/rerank",
            _RANK | {"return_text": True},
            [_RANKED[0] | {"text": "longer"}, _RANKED[1] | {"text": "a"}],
        ),
        ("minilm", _RANK, _RANKED),
        (
            "minilm/similarity",
            {
                "inputs": {"source_sentence": "a", "sentences": ["b"]},
                "parameters": {"truncate": True, "truncation_direction": "Right"},
            },
            [0.3125],
        ),
    ],
)
async def test_a_model_answers_below_its_path(
    client: httpx.AsyncClient, path: str, body: Any, expected: Any
) -> None:
    response = await client.post(f"/tei/{path}", json=body)

    assert (response.status_code, response.json()) == (200, expected)


@pytest.mark.parametrize(
    ("task", "path", "body", "expected"),
    [
        (Task.RERANK, "/rerank", _RANK, _RANKED),
        (Task.EMBED, "/embed", {"inputs": "a"}, [_VECTOR]),
        (Task.CLASSIFY, "/predict", {"inputs": "a"}, _LABELS),
    ],
)
async def test_a_key_for_one_model_names_it_where_the_path_does_not(
    api: Api, client: httpx.AsyncClient, task: Task, path: str, body: Any, expected: Any
) -> None:
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    infos = api.scene.models.infos
    infos["other"] = msgspec.structs.replace(INFO, name="other", tasks=[task])

    answered = await client.post(path, json=body, headers=narrow)
    unlimited = await client.post(path, json=body)
    infos["other"] = msgspec.structs.replace(INFO, name="other", tasks=[Task.ZERO_SHOT])
    other = await client.post(path, json=body, headers=narrow)

    assert (answered.status_code, answered.json()) == (200, expected)
    for refused in (unlimited, other):
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert f"/tei/{{model}}{path}" in refused.json()["error"]


async def test_a_pair_is_one_input(api: Api, client: httpx.AsyncClient) -> None:
    await client.post("/tei/sentiment/predict", json={"inputs": ["a", "b"]})
    native = await client.post("/v1/classify", json={"model": "sentiment", "input": [["a", "b"]]})
    logits = await client.post("/tei/sentiment/predict", json={"inputs": "a", "raw_scores": True})

    assert native.json()["usage"]["hit"] == 1
    assert logits.status_code == 200
    found = await client.post(
        "/v1/classify", json={"model": "sentiment", "input": "a", "function": "none"}
    )
    assert found.json()["usage"]["hit"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "named"),
    [
        ("minilm/embed_all", {"inputs": "a"}, 424, "Backend", "vectors of tokens"),
        ("minilm/tokenize", {"inputs": "a", "prompt_name": "q"}, 422, "Validation", "prompt_name"),
        ("minilm/decode", {"ids": [1, [2]]}, 422, "Validation", "`ids`"),
        ("sentiment/embed", {"inputs": "a"}, 424, "Backend", "sentiment"),
        ("minilm/embed", {"inputs": [1, 2]}, 422, "Validation", "send texts"),
        ("minilm/embed", {"inputs": []}, 422, "Validation", "empty"),
        ("minilm/embed", {"inputs": "a", "prompt_name": "q"}, 422, "Validation", "prompt_name"),
        (
            "minilm/embed",
            {"inputs": "a", "truncation_direction": "Left"},
            422,
            "Validation",
            "truncation_direction",
        ),
        ("minilm/rerank", _RANK | {"raw_scores": True}, 422, "Validation", "raw_scores"),
        ("sentiment/predict", {"inputs": [["a", "b", "c"]]}, 422, "Validation", "pair"),
        ("sentiment/predict", {"inputs": ["a", ["b", "c"]]}, 422, "Validation", "pair"),
        ("sentiment/predict", {"inputs": [["a"], "b"]}, 422, "Validation", "pair"),
        ("sentiment/predict", {"inputs": []}, 422, "Validation", "empty"),
        ("none/embed", {"inputs": "a"}, 404, "Validation", "none"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    client: httpx.AsyncClient, path: str, body: Any, status: int, kind: str, named: str
) -> None:
    response = await client.post(f"/tei/{path}", json=body)

    error = response.json()
    assert (response.status_code, error["error_type"]) == (status, kind), error
    assert named in error["error"]
    assert response.headers["content-type"] == "application/json"


async def test_errors_have_the_statuses_of_tei(api: Api, client: httpx.AsyncClient) -> None:
    async def error(text: str = "a", **more: Any) -> tuple[int, str]:
        response = await client.post("/tei/minilm/embed", json={"inputs": text}, **more)
        return response.status_code, response.json()["error_type"]

    wrong = {"authorization": "Bearer sk-nobody-has-this-one"}
    assert await error(headers=wrong) == (401, "Validation")
    runner = api.scene.runner
    for status, code, expected in (
        (422, "empty_input", (400, "Empty")),
        (422, "too_long", (422, "Validation")),
        (503, "overloaded", (429, "Overloaded")),
        (503, "upstream_unavailable", (503, "Unhealthy")),
        (502, "upstream_failed", (424, "Backend")),
        (504, "deadline_exceeded", (504, "Backend")),
    ):
        runner.failure = ItemFailure(status=status, code=code, detail="So it is.")
        assert await error(code) == expected
        assert api.events.events[-1].status == expected[0]
    runner.failure = None
    api.limit(Rule(name="minute", unit="requests", capacity=1, window=60.0))
    await client.post("/tei/minilm/embed", json={"inputs": "a"})
    assert await error() == (429, "Overloaded")


async def test_a_model_is_described(client: httpx.AsyncClient) -> None:
    info = (await client.get("/tei/other/info")).json()
    health = await client.get("/tei/other/health")
    missing = await client.get("/tei/none/health")

    assert info == {
        "model_id": "other",
        "model_sha": "aaaaaaaaaaaa",
        "model_dtype": "fp32",
        "model_type": {"classifier": {"id2label": {"0": "a"}, "label2id": {"a": 0}}},
        "max_input_length": 256,
        "max_client_batch_size": 2048,
        "auto_truncate": True,
    }
    assert health.status_code == 200
    assert missing.status_code == 404
    assert missing.json()["error_type"] == "Validation"


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_alike(anyio_backend: str, tier: str) -> None:
    headers = ("Host: 127.0.0.1:8080", f"Authorization: Bearer {KEY}")
    bodies = (
        ("minilm/embed", b'{"inputs":"a","normalize":true,"truncate":null}'),
        ("minilm", b'{"inputs":["a","b"]}'),
        ("sentiment/predict", b'{"inputs":"a"}'),
        ("minilm/rerank", b'{"query":"q","texts":["a","b"]}'),
        ("minilm/embed_all", b'{"inputs":"a"}'),
    )
    requests = [sent(f"POST /tei/{path}", headers, body) for path, body in bodies]

    answers, _ = await answer_alike(requests, tier)

    assert [answer.split(b" ", 2)[1] for answer in answers] == [b"200"] * 4 + [b"424"]


@pytest.mark.parametrize(
    ("path", "failure", "status", "is_passing"),
    [
        ("/tei/minilm/embed", (502, "upstream_failed"), 424, True),
        ("/tei/sentiment/embed", None, 424, False),
        ("/tei/minilm/embed", (422, "algorithm_too_slow"), 422, True),
        ("/tei/minilm/embed", (422, "too_long"), 422, False),
        ("/tei/minilm/embed", None, 200, False),
    ],
)
async def test_what_another_try_may_mend_is_not_replayed_whatever_its_status(
    api: Api,
    path: str,
    failure: tuple[int, str] | None,
    status: int,
    is_passing: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = NotedKey()
    monkeypatch.setattr(api.steps, "_idempotency", AlwaysKeyed(key))
    if failure is not None:
        api.scene.runner.failure = ItemFailure(status=failure[0], code=failure[1], detail="So.")
    async with api.client() as client:
        response = await client.post(path, json={"inputs": "a"})

    assert response.status_code == status
    assert (key.stored == b"") == is_passing
