"""Clients of Jina and of Voyage are answered in their form by the same cache, limits and events."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sluicegate.gateway.api.vectors import as_base64, as_json
from sluicegate.gateway.types import ItemFailure
from tests.support.api import KEY, Api, problem
from tests.support.dialects import answer_alike, documented, sent, serve_models

pytestmark = pytest.mark.anyio
_RESULT = b'{"embedding":[0.25,-0.5]}'
_USAGE = {"total_tokens": 10, "prompt_tokens": 10}
_RERANK = {"model": "minilm", "query": "q", "documents": ["short", "longer"]}
_RANKED = [{"index": 1, "relevance_score": 0.07}, {"index": 0, "relevance_score": 0.06}]


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "more", "kind", "packed"),
    [
        ("/jina/v1/embeddings", {}, "float", False),
        ("/jina/v1/embeddings", {"embedding_type": "ubinary", "task": "x"}, "ubinary", False),
        ("/jina/v1/embeddings", {"embedding_type": "base64"}, "float", True),
        ("/voyage/v1/embeddings", {"input_type": "query", "output_dtype": None}, "float", False),
        ("/voyage/v1/embeddings", {"output_dtype": "int8"}, "int8", False),
        ("/voyage/v1/embeddings", {"encoding_format": "base64"}, "float", True),
        (
            "/voyage/v1/embeddings",
            {"encoding_format": "base64", "output_dtype": "uint8"},
            "uint8",
            True,
        ),
    ],
)
async def test_vectors_come_in_the_form_that_is_asked_for(
    client: httpx.AsyncClient, path: str, more: Any, kind: Any, *, packed: bool
) -> None:
    body = {"model": "minilm", "input": ["a", "b"]} | more

    answer = (await client.post(path, json=body)).json()

    vector = httpx.Response(200, content=bytes((as_base64 if packed else as_json)(_RESULT, kind)))
    assert answer == {
        "object": "list",
        "model": "minilm",
        "usage": _USAGE,
        "data": [
            {"object": "embedding", "index": index, "embedding": vector.json()} for index in (0, 1)
        ],
    }
    documented(path, answer)


@pytest.mark.parametrize(
    ("path", "more", "member", "documents_shown"),
    [
        ("/jina/v1/rerank", {}, "results", [{"text": "longer"}, {"text": "short"}]),
        ("/jina/v1/rerank", {"return_documents": False}, "results", None),
        ("/voyage/v1/rerank", {}, "data", None),
        ("/voyage/v1/rerank", {"return_documents": True}, "data", ["longer", "short"]),
    ],
)
async def test_documents_are_ranked(
    client: httpx.AsyncClient, path: str, more: Any, member: str, documents_shown: Any
) -> None:
    most = {"top_n": 1} if "jina" in path else {"top_k": 1}

    answer = (await client.post(path, json=_RERANK | more)).json()
    best = (await client.post(path, json=_RERANK | more | most)).json()

    shown = documents_shown or [None, None]
    expected = [
        one | ({} if text is None else {"document": text})
        for one, text in zip(_RANKED, shown, strict=True)
    ]
    assert answer == {
        "object": "list",
        "model": "minilm",
        "usage": _USAGE,
        member: expected,
    }
    assert best[member] == expected[:1]
    documented(path, answer)


async def test_an_answer_is_a_hit_through_the_native_route(
    api: Api, client: httpx.AsyncClient
) -> None:
    cut = {"model": "minilm", "input": [{"text": "a"}], "dimensions": 1, "normalized": False}
    await client.post("/jina/v1/embeddings", json=cut)
    await client.post(
        "/voyage/v1/embeddings", json={"model": "minilm", "input": "a", "output_dimension": 1}
    )
    await client.post("/jina/v1/rerank", json=_RERANK | {"documents": [{"text": "short"}]})

    plain = {"model": "minilm", "input": "a", "dimensions": 1}
    for path, body in (
        ("/v1/embed", plain | {"normalize": False}),
        ("/v1/embed", plain),
        ("/v1/rerank", _RERANK | {"documents": ["short"]}),
        ("/voyage/v1/rerank", _RERANK | {"documents": ["short"]}),
    ):
        assert "hit" in (await client.post(path, json=body)).headers["cache-status"]
    assert len(api.scene.runner.computed) == 3


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/jina/v1/embeddings", {"model": "minilm", "input": [{"image": "x"}]}, "image"),
        (
            "/jina/v1/embeddings",
            {"model": "minilm", "input": "a", "late_chunking": True},
            "late_chunking",
        ),
        ("/voyage/v1/embeddings", {"model": "minilm", "input": [1]}, "str"),
        ("/voyage/v1/rerank", _RERANK | {"top_n": 1}, "top_n"),
        ("/jina/v1/rerank", _RERANK | {"top_k": 1}, "top_k"),
        ("/jina/v1/rerank", _RERANK | {"documents": []}, "empty"),
    ],
)
async def test_what_does_not_fit_is_a_problem_that_names_it(
    client: httpx.AsyncClient, path: str, body: Any, named: str
) -> None:
    assert named in problem(await client.post(path, json=body), 400, "invalid_request")


@pytest.mark.parametrize("field", ["truncate", "truncation"])
async def test_texts_need_not_be_cut(api: Api, client: httpx.AsyncClient, field: str) -> None:
    path = "/jina/v1/embeddings" if field == "truncate" else "/voyage/v1/embeddings"

    await client.post(path, json={"model": "minilm", "input": "a", field: False})

    assert not api.scene.runner.works[-1].truncate


async def test_an_item_that_fails_is_named(api: Api, client: httpx.AsyncClient) -> None:
    api.scene.runner.failure = ItemFailure(status=422, code="empty_input", detail="It is empty.")

    response = await client.post("/voyage/v1/rerank", json=_RERANK)

    assert "Item 0" in problem(response, 422, "invalid_item")


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_alike(anyio_backend: str, tier: str) -> None:
    headers = ("Host: 127.0.0.1:8080", f"Authorization: Bearer {KEY}")
    bodies = (
        ("/jina/v1/embeddings", b'{"model":"minilm","input":["a"]}'),
        ("/jina/v1/rerank", b'{"model":"minilm","query":"q","documents":["a","b"]}'),
        ("/voyage/v1/embeddings", b'{"input":["a"],"model":"minilm","encoding_format":"base64"}'),
        ("/voyage/v1/rerank", b'{"query":"q","documents":["a"],"model":"minilm","top_k":null}'),
        ("/voyage/v1/rerank", b'{"query":"q","model":"minilm"}'),
    )
    requests = [sent(f"POST {path}", headers, body) for path, body in bodies]

    answers, _ = await answer_alike(requests, tier)

    assert [answer.split(b" ", 2)[1] for answer in answers] == [b"200"] * 4 + [b"400"]
