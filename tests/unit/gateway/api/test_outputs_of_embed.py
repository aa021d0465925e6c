"""Each output of a text is an item of its own, and the answer joins the outputs of a text."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.api.native_routes import joined_outputs
from sluicegate.gateway.types import ItemFailure, ItemOutcome, Source
from sluicegate.wire.protocol import EmbedItem, EmbedOutput, EmbedParameters, embed_output
from tests.support.api import Api, problem
from tests.support.dialects import OUTPUTS, serve_models

pytestmark = pytest.mark.anyio
_BODY = {"model": "minilm", "input": ["a", "b"]}
_ALL: dict[str, Any] = {"outputs": ["dense", "sparse", "multi_vector"]}
_DENSE, _SPARSE, _LATE = (msgspec.json.decode(result) for result in OUTPUTS.values())


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


def computed(api: Api) -> list[EmbedOutput]:
    return [embed_output(item) for item in api.scene.runner.computed]


async def test_the_outputs_of_a_text_are_joined(api: Api, client: httpx.AsyncClient) -> None:
    for _ in range(3):
        answer = (await client.post("/v1/embed", json=_BODY | _ALL)).json()

        assert answer["results"] == [_DENSE | _SPARSE | _LATE] * 2
        assert answer["usage"]["items"] == 6
    assert sorted(computed(api)) == sorted(_ALL["outputs"] * 2)


async def test_each_output_is_cached_on_its_own(api: Api, client: httpx.AsyncClient) -> None:
    await client.post("/v1/embed", json=_BODY)
    await client.post("/v1/embed", json=_BODY | {"outputs": ["sparse"]})
    answer = await client.post("/v1/embed", json=_BODY | _ALL)

    usage = answer.json()["usage"]
    assert (usage["hit"], usage["computed"]) == (4, 2)
    assert computed(api)[4:] == ["multi_vector", "multi_vector"]


async def test_fields_reach_the_outputs_that_they_change(
    api: Api, client: httpx.AsyncClient
) -> None:
    fields = {"input_type": "query", "pool_factor": 2, "return_tokens": True, "dimensions": 1}
    await client.post("/v1/embed", json=_BODY | {"input": "a"} | _ALL | fields)
    await client.post("/v1/embed", json=_BODY | {"input": "a", "outputs": ["sparse"]} | fields)

    bodies = [msgspec.msgpack.decode(item) for item in api.scene.runner.computed]
    sparse = {"input": "a", "output": "sparse", "tokens": True}
    late = {"input": "a", "output": "multi_vector", "is_query": True, "tokens": True}
    assert bodies == ["a", sparse, late, sparse]
    parameters = [
        msgspec.msgpack.decode(work.parameters, type=EmbedParameters)
        for work in api.scene.runner.works
    ]
    assert {each.dimensions for each in parameters} == {1, None}


@pytest.mark.parametrize(
    ("form", "vectors"),
    [
        ({"output_dtype": "int8"}, [[64, -127], [-127, 64]]),
        ({"output_dtype": "ubinary"}, [[128], [64]]),
        (
            {"encoding_format": "base64"},
            [
                base64.b64encode(struct.pack("<2f", *v)).decode()
                for v in ((0.25, -0.5), (-0.5, 0.25))
            ],
        ),
    ],
)
async def test_token_vectors_have_the_form_that_is_asked_for(
    client: httpx.AsyncClient, form: dict[str, str], vectors: list[Any]
) -> None:
    answer = await client.post(
        "/v1/embed", json=_BODY | form | {"outputs": ["multi_vector", "sparse"]}
    )

    assert answer.json()["results"] == [{"multi_vector": vectors} | _SPARSE] * 2


def test_a_text_fails_with_each_of_its_outputs() -> None:
    failure = ItemFailure(status=422, code="bad_output", detail="no", retryable=False)
    done = ItemOutcome(source=Source.COMPUTED, result=OUTPUTS["dense"], truncated_from=9)
    failed = ItemOutcome(source=Source.FAILED, failure=failure)

    first, second = joined_outputs([done, failed, done, done], 2)

    assert first.failure is failure
    assert (second.failure, second.truncated_from) == (None, 9)


@pytest.mark.parametrize(
    "fields",
    [{"outputs": []}, {"outputs": ["dense", "dense"]}, {"outputs": ["dense", "colbert"]}],
)
async def test_odd_outputs_are_refused(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    problem(await client.post("/v1/embed", json=_BODY | fields), 400, "invalid_request")


async def test_bytes_hold_dense_vectors_only(client: httpx.AsyncClient) -> None:
    body = _BODY | {"encoding_format": "bytes", "outputs": ["sparse"]}

    assert "outputs" in problem(await client.post("/v1/embed", json=body), 400, "invalid_request")


async def test_openai_clients_ask_for_outputs_by_extra_fields(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/embeddings", json=_BODY | _ALL)).json()
    alone = (await client.post("/v1/embeddings", json=_BODY)).json()

    entry = {"object": "embedding"} | _DENSE | _SPARSE | _LATE
    assert answer["data"] == [{"index": place} | entry for place in range(2)]
    assert answer["usage"] == alone["usage"]


async def test_jina_clients_ask_for_token_vectors(api: Api, client: httpx.AsyncClient) -> None:
    body = _BODY | {"return_multivector": True, "task": "retrieval.query"}

    answer = (await client.post("/jina/v1/embeddings", json=body)).json()

    vectors = _LATE["multi_vector"]
    assert [entry["embeddings"] for entry in answer["data"]] == [vectors] * 2
    asked = msgspec.msgpack.decode(api.scene.runner.computed[0], type=EmbedItem)
    assert asked.is_query
