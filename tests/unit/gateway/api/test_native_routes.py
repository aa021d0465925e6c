"""Vectors of the native route come in the form that is asked for, from one cached value."""

import base64
import struct
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from sluicegate.wire.protocol import Task
from tests.support.api import Api, problem
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_BODY = {"model": "minilm", "input": ["a", "b"]}
_PACKED = struct.pack("<2f", 0.25, -0.5)


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    made = Api()
    made.scene.models.infos["minilm"] = msgspec.structs.replace(
        INFO, name="minilm", tasks=[Task.EMBED]
    )
    made.scene.runner.result = lambda _: b'{"embedding":[0.25,-0.5]}'
    return made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def test_each_form_is_rendered_from_one_cached_value(
    api: Api, client: httpx.AsyncClient
) -> None:
    forms = {
        ("float", "float"): [0.25, -0.5],
        ("float", "int8"): [64, -127],
        ("base64", "float"): base64.b64encode(_PACKED).decode(),
        ("base64", "ubinary"): base64.b64encode(b"\x80").decode(),
    }
    for (encoding, kind), vector in forms.items():
        more = {"encoding_format": encoding, "output_dtype": kind}
        for _ in range(3):
            answer = await client.post("/v1/embed", json=_BODY | more)

            assert answer.json()["results"] == [{"embedding": vector}] * 2
    assert len(api.scene.runner.computed) == 2


@pytest.mark.parametrize("has_memory", ["memory", "redis"])
async def test_bytes_are_vectors_alone(
    api: Api, client: httpx.AsyncClient, has_memory: str
) -> None:
    api.scene.cache.has_memory = has_memory == "memory"
    body = {"model": "minilm", "input": "a", "encoding_format": "bytes"}
    for _ in range(4):
        answer = await client.post("/v1/embed", json=body)

        assert answer.content == _PACKED
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["sluicegate-vectors"] == "1"
    listed = await client.post("/v1/embed", json=body | {"input": ["a", "b"]})
    assert listed.content == _PACKED * 2
    plain = await client.post("/v1/embed", json={"model": "minilm", "input": "a"})
    assert plain.json()["results"] == [{"embedding": [0.25, -0.5]}]


async def test_bytes_have_no_place_for_errors_of_items(client: httpx.AsyncClient) -> None:
    body = _BODY | {"encoding_format": "bytes", "on_error": "continue"}

    assert "on_error" in problem(await client.post("/v1/embed", json=body), 400, "invalid_request")
