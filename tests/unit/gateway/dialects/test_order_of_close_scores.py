"""Documents are put in order by their scores before these are rounded, on every route."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.api import Api
from tests.support.dialects import serve_models

pytestmark = pytest.mark.anyio
# Sigmoids of -18, -20 and -15.8: all are 0.0 with six decimals.
_SCORES = {b"first": b"1.52299793e-08", b"second": b"2.06115369e-09", b"third": b"1.37453e-07"}
_DOCUMENTS = ["first", "second", "third", "second"]
_ORDER = [2, 0, 1, 3]


@pytest.fixture
async def client(anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    api = serve_models(Api())
    api.scene.runner.result = lambda body: next(
        b'{"score":%b}' % score for text, score in _SCORES.items() if text in body
    )
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "body", "field", "score"),
    [
        ("/v1/rerank", {"documents": _DOCUMENTS}, "results", "score"),
        ("/v2/rerank", {"documents": _DOCUMENTS}, "results", "relevance_score"),
        ("/jina/v1/rerank", {"documents": _DOCUMENTS}, "results", "relevance_score"),
        ("/voyage/v1/rerank", {"documents": _DOCUMENTS}, "data", "relevance_score"),
    ],
)
async def test_close_scores_are_in_order_and_ties_in_that_of_the_input(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str, score: str
) -> None:
    top = "top_k" if "voyage" in path else "top_n"
    asked = {"model": "minilm", "query": "q"} | body

    every = await client.post(path, json=asked)
    best = await client.post(path, json=asked | {top: 1})

    found = every.json()[field]
    assert [one["index"] for one in found] == _ORDER
    assert [one[score] for one in found] == [0.0] * 4
    assert [one["index"] for one in best.json()[field]] == [2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tei/minilm/rerank", {"query": "q", "texts": _DOCUMENTS}),
        ("/models/minilm/pipeline/text-ranking", {"inputs": {"query": "q", "texts": _DOCUMENTS}}),
    ],
)
async def test_close_scores_are_in_order_in_a_list(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    answer = await client.post(path, json=body)

    assert [one["index"] for one in answer.json()] == _ORDER
