"""NeMo Guardrails calls the gateway as its GLiNER server."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.types import ItemFailure
from sluicegate.wire.protocol import EntitiesParameters, Task
from tests.support.api import KEY, Api
from tests.support.dialects import answer_alike, sent
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
TEXT = "Ada Lovelace lives in Paris."
NAME = {"label": "name", "score": 0.9, "text": "Ada Lovelace", "start": 0, "end": 12}
FIRST = {"label": "first_name", "score": 0.8, "text": "Ada", "start": 0, "end": 3}
CITY = {"label": "city", "score": 0.7, "text": "Paris", "start": 22, "end": 27}
BODY = {
    "text": TEXT,
    "labels": ["name", "first_name", "city"],
    "threshold": 0.5,
    "chunk_length": 384,
    "overlap": 128,
    "flat_ner": False,
}
# As the actions of nemoguardrails 0.24.1 send it.
_CAPTURED = sent(
    "POST /gliner/pii/v1/extract",
    (
        *("Host: 127.0.0.1:42861", "Accept: */*", "Accept-Encoding: gzip, deflate"),
        *("Connection: keep-alive", "User-Agent: python-httpx/0.28.1"),
        *("Content-Type: application/json", f"Authorization: Bearer {KEY}"),
    ),
    b'{"text":"Ada Lovelace lives in Paris.","threshold":0.5,"chunk_length":384,"overlap":128,'
    b'"flat_ner":false,"labels":["name","first_name","city"]}',
)


def serve(api: Api) -> Api:
    models = api.scene.models.infos
    models["pii"] = msgspec.structs.replace(INFO, name="pii", tasks=[Task.ENTITIES])
    models["people"] = msgspec.structs.replace(
        INFO, name="people", tasks=[Task.ENTITIES], labels=["O", "B-PER"]
    )
    api.scene.runner.result = lambda _: msgspec.json.encode({"entities": [NAME, FIRST, CITY]})
    return api


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize("path", ["/gliner/pii/v1/extract", "/v1/extract"])
async def test_the_outermost_entities_are_listed_and_tagged(
    client: httpx.AsyncClient, path: str
) -> None:
    response = await client.post(path, json=BODY)

    assert response.status_code == 200
    assert response.json() == {
        "entities": [
            {
                "value": "Ada Lovelace",
                "suggested_label": "name",
                "start_position": 0,
                "end_position": 12,
                "score": 0.9,
            },
            {
                "value": "Paris",
                "suggested_label": "city",
                "start_position": 22,
                "end_position": 27,
                "score": 0.7,
            },
        ],
        "total_entities": 2,
        "tagged_text": "[Ada Lovelace](name) lives in [Paris](city).",
    }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"flat": False}),
        ({"flat_ner": True}, {}),
        ({"threshold": 0.3, "flat_ner": True}, {"threshold": 0.3}),
        ({"threshold": None, "flat_ner": None}, {"flat": False}),
    ],
)
async def test_options_reach_the_model_as_those_of_the_native_route(
    api: Api, client: httpx.AsyncClient, changed: dict[str, Any], expected: dict[str, Any]
) -> None:
    await client.post("/v1/extract", json=BODY | changed)

    found = msgspec.msgpack.decode(api.scene.runner.works[-1].parameters, type=EntitiesParameters)
    assert found == EntitiesParameters(labels=["name", "first_name", "city"], **expected)


async def test_an_answer_of_the_native_route_is_a_hit(client: httpx.AsyncClient) -> None:
    native = {"model": "pii", "input": TEXT, "labels": BODY["labels"], "flat": False}
    await client.post("/v1/entities", json=native)

    response = await client.post("/gliner/pii/v1/extract", json=BODY)

    assert "; hit" in response.headers["cache-status"]


async def test_the_path_must_name_the_model_if_there_are_several(
    api: Api, client: httpx.AsyncClient
) -> None:
    models = api.scene.models.infos
    models["other"] = msgspec.structs.replace(INFO, name="other", tasks=[Task.ENTITIES])

    response = await client.post("/v1/extract", json=BODY)

    assert response.status_code == 400
    assert "2 models" in response.json()["detail"]
    assert "/gliner/{model}/v1/extract" in response.json()["detail"]


async def test_labels_have_no_default(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/extract", json={"text": TEXT})

    assert response.status_code == 400
    assert "labels" in response.json()["detail"]


async def test_a_refused_item_fails_the_request(api: Api, client: httpx.AsyncClient) -> None:
    api.scene.runner.failure = ItemFailure(
        status=422, code="too_many_labels", detail="fewer", retryable=False
    )

    response = await client.post("/v1/extract", json=BODY)

    assert response.status_code == 422
    assert response.json()["item_code"] == "too_many_labels"


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_text_has_no_entities(client: httpx.AsyncClient, text: str) -> None:
    response = await client.post("/gliner/pii/v1/extract", json=BODY | {"text": text})

    assert response.status_code == 200
    assert response.json() == {"entities": [], "total_entities": 0, "tagged_text": text}


@pytest.mark.parametrize("tier", ["memory", "remote"])
async def test_both_entry_points_answer_alike(tier: str) -> None:
    headers = ["Host: a", "Content-Type: application/json"]
    request = sent("POST /v1/extract", headers, msgspec.json.encode(BODY))

    answers, _ = await answer_alike([request, _CAPTURED], tier, serve)

    assert len(answers) == 2
    # What the actions read of an answer.
    found = msgspec.json.decode(answers[1].partition(b"\r\n\r\n")[2])
    assert answers[1].startswith(b"HTTP/1.1 200 ")
    assert found["total_entities"] == 2
    assert [(one["start_position"], one["end_position"]) for one in found["entities"]] == [
        (0, 12),
        (22, 27),
    ]
