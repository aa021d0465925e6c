"""The OpenAPI document is whole and true, and the page that shows it names no other host."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from backends.protocol import Task
from gateway.api.schemas import TASK_BODIES, InferBody
from tests.support.api import Api

pytestmark = pytest.mark.anyio
_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
_PROBLEM = "#/components/schemas/Problem"


@pytest.fixture
async def client(anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with Api().client() as opened:
        opened.headers.pop("authorization")
        yield opened


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.get("/openapi.json")
    found: dict[str, Any] = response.json()
    return found


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        assert set(methods) <= _METHODS
        for operation in methods.values():
            yield path, operation


async def test_the_document_says_what_it_is(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["title"] == "Sluicegate"
    assert document["info"]["version"] == "1.2.3"


async def test_every_route_is_there_and_no_other(document: dict[str, Any]) -> None:
    tasks = {f"/v1/{task}" for task in Task if task is not Task.INFER} | {"/v1/infer/{model}"}

    others = {"/v1/models", "/v1/models/{model}", "/v1/usage", "/health/live", "/health/ready"}
    assert set(document["paths"]) == tasks | others


async def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found = set(references(document))

    assert _PROBLEM in found
    for reference in found:
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]


async def test_every_operation_is_whole(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]

    assert len(set(names)) == len(names)
    for path, operation in operations(document):
        assert operation["summary"]
        assert "200" in operation["responses"]
        assert all(response["description"] for response in operation["responses"].values())
        parameters = operation.get("parameters", [])
        in_path = [one["name"] for one in parameters if one["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path)
        assert all(one["required"] for one in parameters if one["in"] == "path")
        assert all({"name", "in", "schema"} <= set(one) for one in parameters)


async def test_errors_are_problems_and_health_needs_no_key(document: dict[str, Any]) -> None:
    assert document["security"] == [{"key": []}]
    assert set(document["components"]["securitySchemes"]) == {"key"}
    for path, operation in operations(document):
        if path.startswith("/health/"):
            assert operation["security"] == []
            continue
        errors = {s: r for s, r in operation["responses"].items() if not s.startswith("2")}
        assert {"401", "429", "503"} <= set(errors)
        for response in errors.values():
            assert response["content"] == {
                "application/problem+json": {"schema": {"$ref": _PROBLEM}}
            }


async def test_the_examples_are_requests(document: dict[str, Any]) -> None:
    for body in (*TASK_BODIES, InferBody):
        path = "/v1/infer/{model}" if body is InferBody else f"/v1/{body.task}"
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            msgspec.convert(example["value"], body)


async def test_the_page_loads_nothing_from_other_hosts(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    sources = re.findall(r'(?:src|href|spec-url)="([^"]*)"', page.text)

    assert sources == ["data:,", "/docs/rapidoc.js", "/openapi.json"]
    assert re.findall(r"https?://", page.text) == []
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy


async def test_the_viewer_is_served_and_may_be_kept(client: httpx.AsyncClient) -> None:
    script = await client.get("/docs/rapidoc.js")

    assert script.headers["content-type"].startswith("text/javascript")
    assert "max-age" in script.headers["cache-control"]
    assert b"rapi-doc" in script.content


async def test_litestar_serves_no_document_of_its_own(client: httpx.AsyncClient) -> None:
    for path in ("/schema", "/schema/openapi.json"):
        assert (await client.get(path)).status_code == 404
