"""A request for a misspelt model is told the one that was meant, if its key may know of it."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.config.document import ModelConfig
from tests.support.api import NARROW_KEY, Api
from tests.support.dialects import serve_models
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_HINT = "Did you mean `sentiment`?"
_NARROW = {"authorization": f"Bearer {NARROW_KEY}"}


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/classify", {"model": "sentimnt", "input": "a"}),
        ("/v1/embeddings", {"model": "sentimnt", "input": "a"}),
        ("/v1/moderations", {"model": "sentimnt", "input": "a"}),
        ("/v2/rerank", {"model": "sentimnt", "query": "a", "documents": ["b"]}),
        ("/models/sentimnt", {"inputs": "a"}),
        ("/tei/sentimnt/predict", {"inputs": "a"}),
        ("/v2/models/sentimnt/infer", {"inputs": []}),
    ],
)
async def test_a_misspelt_model_is_told_the_known_one(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    response = await client.post(path, json=body)

    assert response.status_code in {403, 404}
    assert _HINT in response.text


@pytest.mark.parametrize(
    "path", ["/v1/models/sentimnt", "/tei/sentimnt/info", "/v2/models/sentimnt"]
)
async def test_a_misspelt_model_is_told_where_models_are_described(
    client: httpx.AsyncClient, path: str
) -> None:
    response = await client.get(path)

    assert response.status_code == 404
    assert _HINT in response.text


async def test_a_limited_key_is_told_its_own_models_alone(client: httpx.AsyncClient) -> None:
    hidden = await client.post(
        "/v1/classify", json={"model": "sentimnt", "input": "a"}, headers=_NARROW
    )
    own = await client.post("/v1/classify", json={"model": "othr", "input": "a"}, headers=_NARROW)

    assert hidden.status_code == own.status_code == 403
    assert "Did you mean" not in hidden.text
    assert "Did you mean `other`?" in own.text


async def test_models_that_are_off_or_answer_nobody_are_not_named(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.models.infos["encodr"] = msgspec.structs.replace(INFO, name="encodr", tasks=[])
    api.configure(models={"sentiment": ModelConfig(enabled=False)})

    for name in ("encoder", "sentimnt"):
        response = await client.post("/v1/classify", json={"model": name, "input": "a"})
        assert response.status_code == 404
        assert "Did you mean" not in response.text
