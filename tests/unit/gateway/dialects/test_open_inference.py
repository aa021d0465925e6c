"""Clients of Triton and KServe are answered over HTTP by the same cache, limits and events."""

import json
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.types import ItemFailure, Rule
from tests.support.api import KEY, NARROW_KEY, Api
from tests.support.dialects import answer_alike, sent, serve_models
from tests.support.documents import conforms, documents

pytestmark = pytest.mark.anyio
_LENGTH = "inference-header-content-length"
_VECTORS = [0.25, -0.5] * 2
_WRONG = {"authorization": "Bearer sk-nobody-has-this-one"}


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return serve_models(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


def text(*elements: str, name: str = "TEXT", **more: Any) -> dict[str, Any]:
    shape = [len(elements), 1]
    return {"name": name, "shape": shape, "datatype": "BYTES", "data": list(elements)} | more


def raw(*elements: bytes) -> bytes:
    return b"".join([struct.pack("<I", len(element)) + element for element in elements])


def binary(content: bytes, body: dict[str, Any]) -> dict[str, Any]:
    """Return the request that has `content` after its JSON."""
    head = json.dumps(body).encode()
    return {"content": head + content, "headers": {_LENGTH: str(len(head))}}


def of_bytes(*elements: str, name: str = "TEXT") -> dict[str, Any]:
    tensor = text(*elements, name=name)
    size = len(raw(*[element.encode() for element in tensor.pop("data")]))
    return tensor | {"parameters": {"binary_data_size": size}}


def read(response: httpx.Response) -> dict[str, Any]:
    """Return the outputs by name: what is JSON as it is, of the rest the bytes."""
    assert response.status_code == 200, response.text
    length = int(response.headers.get(_LENGTH, len(response.content)))
    at = length
    found: dict[str, Any] = {}
    for output in json.loads(response.content[:length])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = output["data"]
        else:
            found[output["name"]] = response.content[at : at + size]
            at += size
    assert at == len(response.content)
    return found


async def test_texts_and_answers_come_as_json_or_as_bytes(client: httpx.AsyncClient) -> None:
    path = "/v2/models/minilm/infer"
    body = {"id": "42", "inputs": [text("a", "é")]}
    as_json = await client.post(path, json=body)
    wanted = {"parameters": {"binary_data_output": True}}
    of = binary(raw(b"a", "é".encode()), {"inputs": [of_bytes("a", "é")]} | wanted)
    as_bytes = await client.post(path, **of)

    assert as_json.json() == {
        "model_name": "minilm",
        "model_version": "1",
        "id": "42",
        "outputs": [{"name": "EMBEDDING", "datatype": "FP32", "shape": [2, 2], "data": _VECTORS}],
    }
    document = documents()["customers"]
    told = document["paths"]["/v2/models/{model}/infer"]["post"]["responses"]["200"]
    conforms(document, told["content"]["application/json"]["schema"], as_json.json())
    assert as_json.headers["content-type"] == "application/json"
    assert read(as_bytes) == {"EMBEDDING": struct.pack("<4f", *_VECTORS)}
    assert as_bytes.headers["content-type"] == "application/octet-stream"
    output = {"name": "EMBEDDING", "parameters": {"binary_data": False}}
    mixed = await client.post(path, json=body | wanted | {"outputs": [output]})
    assert read(mixed) == {"EMBEDDING": _VECTORS}


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "expected"),
    [
        ("sentiment", [text("a")], ["LABEL", "SCORE"], {"LABEL": ["good"], "SCORE": [0.75]}),
        (
            "topics",
            [text("a"), text("y", "x", name="LABELS", shape=[1, 2])],
            ["SCORES"],
            {"SCORES": [0.4, 0.6]},
        ),
        ("minilm", [text("a", "long"), text("q", name="QUERY")], [], {"SCORE": [0.02, 0.05]}),
        ("entities", [text("Sarah")], [], None),
    ],
)
async def test_a_model_answers_by_the_inputs_of_its_tasks(
    client: httpx.AsyncClient, model: str, inputs: Any, outputs: list[str], expected: Any
) -> None:
    body = {"inputs": inputs} | ({"outputs": [{"name": n} for n in outputs]} if outputs else {})
    response = await client.post(f"/v2/models/{model}/infer", json=body)
    versioned = await client.post(f"/v2/models/{model}/versions/1/infer", json=body)

    found = read(response)
    assert versioned.content == response.content
    if expected is None:
        assert json.loads(found["ENTITIES"][0])[0]["text"] == "Sarah"
    else:
        assert found == expected


async def test_a_raw_body_is_one_text(client: httpx.AsyncClient) -> None:
    path = "/v2/models/sentiment/infer"
    response = await client.post(path, content=b"a text", headers={_LENGTH: "0"})

    assert read(response)["LABEL"] == raw(b"good")
    native = await client.post("/v1/classify", json={"model": "sentiment", "input": "a text"})
    assert native.json()["usage"]["hit"] == 1


async def test_an_answer_is_a_hit_by_every_route(client: httpx.AsyncClient) -> None:
    path = "/v2/models/minilm/infer"
    native = (await client.post("/v1/embed", json={"model": "minilm", "input": ["a", "b"]})).json()
    tensors = await client.post(path, json={"inputs": [text("a", "b")]})
    of = await client.post(path, **binary(raw(b"a", b"c"), {"inputs": [of_bytes("a", "c")]}))
    openai = await client.post("/v1/embeddings", json={"model": "minilm", "input": "c"})
    cohere = await client.post("/v2/embed", json={"model": "minilm", "texts": ["c"]})

    assert native["usage"]["computed"] == 2
    assert "hit" in tensors.headers["cache-status"]
    assert read(of)["EMBEDDING"] == _VECTORS
    for response in (openai, cohere):
        assert "hit" in response.headers["cache-status"], response.text
    ranked = {"inputs": [text("a", "b"), text("q", name="QUERY")]}
    await client.post(path, json=ranked)
    body = {"model": "minilm", "query": "q", "documents": ["a", "b"]}
    assert (await client.post("/v1/rerank", json=body)).json()["usage"]["hit"] == 2


_BAD: tuple[tuple[Any, str], ...] = (
    ({"inputs": []}, "`TEXT` is missing"),
    ({"inputs": [text()]}, "empty"),
    ({"inputs": [text("a", datatype="FP32")]}, "`FP32`"),
    ({"inputs": [text("a", shape=[2, 1])]}, "`TEXT`"),
    ({"inputs": [text("a", shape=[-1])]}, "dimensions"),
    ({"inputs": [text("a", shape=[1.5])]}, "shape"),
    ({"inputs": [text("a", data=[1])]}, "number 0"),
    ({"inputs": [text("a", data=None)]}, "`data`"),
    ({"inputs": [of_bytes("a")]}, "`binary_data_size` of 5"),
    ({"inputs": [text("a", parameters={"binary_data_size": -1})]}, "of -1"),
    ({"inputs": [text("a", parameters={"binary_data_size": "5"})]}, "binary_data_size"),
    ({"inputs": [text("a")], "parameters": {"sequence_id": 7}}, "sequence_id"),
    ({"inputs": [text("a")], "parameters": {"binary_data_output": 1}}, "binary_data_output"),
    ({"inputs": [text("a")], "parameters": {"dimensions": "two"}}, "dimensions"),
    ({"inputs": [text("a")], "outputs": [{"name": "LABEL"}]}, "`EMBEDDING`"),
    ({"inputs": [text("a")], "color": "red"}, "color"),
    ({}, "inputs"),
)


async def test_bad_input_is_a_bad_request_that_says_what_to_do(client: httpx.AsyncClient) -> None:
    for body, named in _BAD:
        response = await client.post("/v2/models/minilm/infer", json=body)

        assert response.status_code == 400, response.text
        assert named in response.json()["error"]
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-request-id"].startswith("req_")


async def test_a_length_that_does_not_fit_the_body_is_refused(client: httpx.AsyncClient) -> None:
    content = json.dumps({"inputs": [of_bytes("a")]}).encode() + raw(b"a")

    for length in ("1", "9999999999", "99999999999", "-1", "x", "0x1", "1.0"):
        headers = {_LENGTH: length}
        response = await client.post("/v2/models/minilm/infer", content=content, headers=headers)
        assert (response.status_code, set(response.json())) == (400, {"error", "code"})


async def test_bytes_that_are_nobodys_are_refused(client: httpx.AsyncClient) -> None:
    request = binary(raw(b"a") + b"more", {"inputs": [of_bytes("a")]})

    response = await client.post("/v2/models/minilm/infer", **request)

    assert (response.status_code, "4 bytes" in response.json()["error"]) == (400, True)


async def test_no_more_is_read_than_a_request_may_have(client: httpx.AsyncClient) -> None:
    deep = b'{"inputs":[{"name":"TEXT","shape":[1],"datatype":"BYTES","data":' + b"[" * 20_000
    for request, status in (
        ({"json": {"inputs": [text(*["a"] * 2049)]}}, 413),
        (binary(raw(*[b"a"] * 2049), {"inputs": [of_bytes(*["a"] * 2049)]}), 413),
        (binary(raw(*[b""] * 65_537), {"inputs": [of_bytes(*[""] * 65_537)]}), 413),
        ({"json": {"inputs": [text(data=[[]] * 65_537, shape=[1])]}}, 413),
        ({"json": {"inputs": [text("a", shape=[2**62] * 60_000)]}}, 400),
        ({"content": deep}, 400),
    ):
        response = await client.post("/v2/models/minilm/infer", **request)

        assert response.status_code == status, response.text
        assert response.json()["error"]


async def test_damaged_requests_are_answered_or_refused(client: httpx.AsyncClient) -> None:
    chance = random.Random(2)
    whole = binary(raw(b"a", b"b"), {"inputs": [of_bytes("a", "b")]})
    for _ in range(150):
        content = bytearray(whole["content"][: chance.randrange(1, len(whole["content"]) + 1)])
        for _ in range(chance.randrange(3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        length = int(whole["headers"][_LENGTH]) + chance.choice([0, 0, 0, -1, 1, 10])
        headers = {_LENGTH: str(length)}
        response = await client.post(
            "/v2/models/minilm/infer", content=bytes(content), headers=headers
        )
        assert response.status_code in (200, 400), response.text


async def test_errors_are_those_of_the_protocol(api: Api, client: httpx.AsyncClient) -> None:
    async def error(path: str = "minilm", one: str = "a", **more: Any) -> tuple[int, str]:
        body = {"inputs": [text(one)]}
        response = await client.post(f"/v2/models/{path}/infer", json=body, **more)
        found = response.json()
        assert isinstance(found["error"], str)
        return response.status_code, found["code"]

    assert await error(headers=_WRONG) == (401, "authentication_failed")
    assert await error("none") == (404, "model_not_found")
    assert await error("minilm/versions/7") == (404, "model_not_found")
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    assert await error(headers=narrow) == (403, "permission_denied")
    query = {"inputs": [text("a"), text("q", name="QUERY")]}
    other = await client.post("/v2/models/sentiment/infer", json=query)
    assert (other.status_code, other.json()["code"]) == (400, "task_not_supported")
    runner = api.scene.runner
    for status, code in ((503, "overloaded"), (502, "upstream_failed"), (422, "input_too_long")):
        runner.failure = ItemFailure(status=status, code=code, detail="So it is.")
        assert await error(one=code) == (status, code)
    runner.failure = None
    assert (await client.get("/v2/models/minilm/infer")).json()["code"] == "method_not_allowed"
    missing = await client.get("/v2/nothing/here")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    api.limit(Rule(name="minute", unit="requests", capacity=1, window=60.0))
    await error()
    assert await error() == (429, "rate_limited")


async def test_the_gateway_and_its_models_are_described(api: Api) -> None:
    async with api.client() as client:
        server = (await client.get("/v2")).json()
        live = await client.get("/v2/health/live", headers={"authorization": ""})
        ready = await client.get("/v2/health/ready", headers={"authorization": ""})
        model = (await client.get("/v2/models/other")).json()
        version = (await client.get("/v2/models/other/versions/1")).json()
        config = (await client.get("/v2/models/other/config")).json()
        is_ready = await client.get("/v2/models/other/ready")
        index = await client.post("/v2/repository/index", content=b"")
        narrow = {"authorization": f"Bearer {NARROW_KEY}"}
        own = await client.post("/v2/repository/index", json={"ready": True}, headers=narrow)

        assert (server["name"], "binary_tensor_data" in server["extensions"]) == (
            "sluicegate",
            True,
        )
        assert (live.status_code, live.json()) == (200, {"live": True})
        assert (ready.status_code, ready.json()) == (200, {"ready": True})
        assert (model["name"], model["versions"]) == ("other", ["1"])
        assert model["outputs"][2] == {"name": "SCORES", "datatype": "FP32", "shape": [-1, 1]}
        assert version == model
        assert config["parameters"]["labels"] == {"string_value": '["a"]'}
        assert config["max_batch_size"] == 2048
        assert (is_ready.status_code, is_ready.json()) == (200, {"name": "other", "ready": True})
        entry = {"version": "1", "state": "READY", "reason": ""}
        assert index.json() == [{"name": name} | entry for name in ("sentiment", "other")]
        assert own.json() == [{"name": "other"} | entry]

        api.ready = msgspec.structs.replace(api.ready, ready=False)
        for path in ("/v2/health/ready", "/v2/models/other/ready"):
            response = await client.get(path)
            assert (response.status_code, response.json()["ready"]) == (503, False)


async def test_a_model_that_is_not_served_is_not_found(client: httpx.AsyncClient) -> None:
    for name in ("none", "helper", "other/versions/2"):
        for suffix in ("", "/ready", "/config", "/stats"):
            response = await client.get(f"/v2/models/{name}{suffix}")

            assert (response.status_code, response.json()["code"]) == (404, "model_not_found")


async def test_statistics_show_no_key_what_others_ask(client: httpx.AsyncClient) -> None:
    await client.post("/v2/models/sentiment/infer", json={"inputs": [text("a")]})

    (one,) = (await client.get("/v2/models/sentiment/stats")).json()["model_stats"]
    every = (await client.get("/v2/models/stats")).json()["model_stats"]

    assert (one["name"], one["version"], one["inference_count"]) == ("sentiment", "1", 0)
    assert {counted["count"] for counted in one["inference_stats"].values()} == {0}
    assert "cache_hit" in one["inference_stats"]
    assert [each["name"] for each in every] == ["sentiment", "other"]
    assert every[0] == one


_OF_OPERATORS = (
    ("POST", "/v2/repository/models/minilm/load"),
    ("POST", "/v2/repository/models/minilm/unload"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/models/minilm/trace/setting"),
    ("GET", "/v2/logging"),
)


async def test_what_operators_do_is_refused_with_what_to_do(client: httpx.AsyncClient) -> None:
    for method, path in _OF_OPERATORS:
        response = await client.request(method, path, content=b"")

        assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
        assert len(response.json()["error"]) > 20
        stranger = await client.request(method, path, content=b"", headers=_WRONG)
        assert stranger.status_code == 401
    for method, path, allowed in (
        ("POST", "/v2", "GET, HEAD"),
        ("POST", "/v2/models/minilm/ready", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
    ):
        response = await client.request(method, path)
        assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
        assert response.headers["allow"] == allowed


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_alike(anyio_backend: str, tier: str) -> None:
    # As tritonclient 2.73.0 sends them.
    headers = ("Host: 127.0.0.1:8080", f"Authorization: Bearer {KEY}")
    vector = (
        b'{"id":"42","inputs":[{"name":"TEXT","shape":[1,1],"datatype":"BYTES","parameters":'
        b'{"binary_data_size":10}}],"parameters":{"binary_data_output":true}}'
    )
    plain = (
        b'{"inputs":[{"name":"TEXT","shape":[1,1],"datatype":"BYTES","data":["a text"]}],'
        b'"outputs":[{"name":"LABEL","parameters":{"binary_data":false}}]}'
    )
    of_length = (*headers, f"Inference-Header-Content-Length: {len(vector)}")
    requests = [
        sent("POST /v2/models/minilm/infer", of_length, vector + raw(b"a text")),
        sent("POST /v2/models/sentiment/versions/1/infer", headers, plain),
        sent("POST /v2/models/sentiment/infer", headers, plain.replace(b"LABEL", b"X")),
        sent("POST /v2/models/none/infer", headers, plain),
    ]

    answers, _ = await answer_alike(requests, tier)

    assert [answer.split(b" ", 2)[1] for answer in answers] == [b"200", b"200", b"400", b"404"]
    assert b"\r\ninference-header-content-length: " in answers[0]
    assert answers[0].endswith(struct.pack("<2f", 0.25, -0.5))
