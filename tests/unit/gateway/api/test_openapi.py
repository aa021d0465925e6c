"""Both OpenAPI documents are whole and true, and the page that shows them names no other host."""

import re
import shlex
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from litestar.routes import HTTPRoute

from sluicegate.gateway.admin.app import HANDLERS
from sluicegate.gateway.api.code_samples import code_samples
from sluicegate.gateway.api.openapi import described_by_litestar
from sluicegate.gateway.api.openapi_parts import (
    all_errors,
    codes,
    header_components,
    problem_example,
)
from sluicegate.gateway.api.routes import CONTROLLERS
from sluicegate.gateway.api.schemas import BODIES, InferBody
from sluicegate.gateway.dialects.registry import DIALECTS
from sluicegate.gateway.errors import MethodNotAllowed
from sluicegate.gateway.http.problem_details import MEDIA_TYPE, Problem
from sluicegate.wire.protocol import MAX_LABELS, Task
from tests.support.api import Api
from tests.support.documents import (
    METHODS,
    OF_DIALECTS,
    Document,
    documents,
    operations,
    resolved,
)

pytestmark = pytest.mark.anyio
_PROBLEM = "#/components/schemas/Problem"
both = pytest.mark.parametrize("document", ["customers", "operators"], indirect=True)


@pytest.fixture
def document(request: pytest.FixtureRequest) -> Document:
    """The document of that name. None is built where tests are only collected."""
    return documents()[request.param]


@pytest.fixture
async def client(anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with Api().client() as opened:
        opened.headers.pop("authorization")
        yield opened


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


@both
async def test_a_document_is_valid_openapi_3_1(document: Document) -> None:
    from openapi_spec_validator import validate  # noqa: PLC0415 - slow to import

    validate(document)

    assert document["openapi"].startswith("3.1.")


async def test_a_worker_serves_the_document_of_customers(client: httpx.AsyncClient) -> None:
    assert (await client.get("/openapi.json")).json() == documents()["customers"]


@pytest.mark.parametrize(
    ("name", "handlers"), [("customers", [*CONTROLLERS, *OF_DIALECTS]), ("operators", HANDLERS)]
)
async def test_every_route_is_described_and_no_other(name: str, handlers: Any) -> None:
    application = described_by_litestar(handlers)
    routes = {
        (method.lower(), route.path_format)
        for route in application.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.include_in_schema is not False
        for method in handler.http_methods - {"OPTIONS", "HEAD"}
    }
    routes = {route for route in routes if not route[1].startswith("/schema")}
    if name == "customers":
        named = {Task.INFER, Task.GUARD}  # whose paths have a name
        routes |= {("post", f"/v1/{task}") for task in Task if task not in named}
        routes.add(("post", "/v1/infer/{model}"))
        routes |= {
            ("post", route.template)
            for dialect in DIALECTS
            for route, operation in dialect.routes.items()
            if operation is not None  # it refuses everything
        }
        routes |= {name for dialect in DIALECTS for name in dialect.operations}

    assert {(m, p) for m, p, _ in operations(documents()[name])} == routes


async def test_every_request_that_changes_something_may_carry_an_idempotency_key() -> None:
    for method, _, operation in operations(documents()["customers"]):
        names = [one["name"] for one in operation.get("parameters", ())]
        statuses = set(operation["responses"])

        assert names.count("Idempotency-Key") == (method != "get")
        if method != "get":
            assert {"409", "422"} <= statuses
            (answer,) = (operation["responses"][one] for one in statuses if one[0] == "2")
            assert "Idempotency-Replayed" in answer["headers"]
    assert b'"name":"Idempotency-Key"' not in msgspec.json.encode(documents()["operators"])


@both
async def test_every_reference_leads_somewhere(document: Document) -> None:
    found = set(references(document))

    assert _PROBLEM in found
    for reference in found:
        assert resolved(document, {"$ref": reference})


@both
async def test_every_operation_is_whole(document: Document) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]

    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    for method, path, operation in operations(document):
        assert method in METHODS
        assert operation["summary"]
        assert set(operation["tags"]) <= tags
        assert any(status.startswith("2") for status in operation["responses"])
        parameters = operation.get("parameters", [])
        in_path = [one["name"] for one in parameters if one["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path)
        assert all(one["required"] for one in parameters if one["in"] == "path")
        for parameter in parameters:
            assert {"name", "in", "schema"} <= set(parameter)
            assert parameter["description"], parameter
        if "requestBody" in operation:
            for media in operation["requestBody"]["content"].values():
                assert media["examples"]


@both
async def test_every_answer_names_its_request_and_says_its_type(document: Document) -> None:
    for _, path, operation in operations(document):
        for status, reference in operation["responses"].items():
            response = resolved(document, reference)

            assert response["description"]
            assert {"X-Request-Id", "Cache-Control"} <= set(response["headers"])
            if status not in ("202", "304"):
                for media in response["content"].values():
                    assert media["schema"] != {}, (path, status)


@both
async def test_errors_are_problems_with_their_codes(document: Document) -> None:
    assert document["security"] == [{"key": []}]
    assert set(document["components"]["securitySchemes"]) == {"key"}
    for _, path, operation in operations(document):
        is_public = operation.get("security") == []
        assert is_public == path.startswith(("/health/", "/v2/health/"))
        failures = {s for s in operation["responses"] if s >= "400"}
        assert {"400", "408", "500", "503"} | (set() if is_public else {"401"}) <= failures
        for status in failures:
            response = resolved(document, operation["responses"][status])
            problem = response["content"].get("application/problem+json")
            if problem is None:
                assert operation["tags"][0] in {dialect.name for dialect in DIALECTS}
                continue
            told = resolved(document, problem["schema"])["properties"]
            assert set(told) >= set(Problem.__struct_fields__)
            for code, example in problem.get("examples", {}).items():
                assert example["value"]["code"] == code
                assert str(example["value"]["status"]) == status


async def test_every_error_is_told_of_where_it_may_happen() -> None:
    told = {
        code
        for document in documents().values()
        for response in document["components"]["responses"].values()
        for code in response["content"].get(MEDIA_TYPE.decode(), {}).get("examples", ())
    }

    assert told | {MethodNotAllowed.code} == codes()
    for document in documents().values():
        schema = document["components"]["schemas"]["Problem"]
        assert schema["properties"]["code"]["enum"] == sorted(codes())


async def test_examples_of_problems_are_as_they_are_sent() -> None:
    for error in all_errors():
        example = problem_example(error)

        assert (example["code"], example["status"]) == (error.code, error.status)
        assert example["request_id"].startswith("req_")


async def test_every_header_says_what_it_means() -> None:
    for header in header_components().values():
        assert header["description"]
        assert header["schema"]


@pytest.mark.parametrize("body", BODIES)
async def test_bodies_and_results_are_described_field_by_field(body: Any) -> None:
    document = documents()["customers"]
    path = "/v1/infer/{model}" if body is InferBody else f"/v1/{body.task}"
    operation = document["paths"][path]["post"]
    sent = resolved(document, operation["requestBody"]["content"]["application/json"]["schema"])
    answer = resolved(
        document, operation["responses"]["200"]["content"]["application/json"]["schema"]
    )

    assert set(sent["properties"]) == set(body.__struct_fields__)
    for schema in (sent, answer):
        assert all(field["description"] for field in schema["properties"].values()), schema
    results = answer["properties"]["results"]["items"]
    if body is not InferBody:
        kinds = [resolved(document, kind) for kind in results["anyOf"]]
        assert len(kinds) == 2
        assert any("error" in kind["properties"] for kind in kinds)
    assert set(answer["required"]) == set(answer["properties"])


@both
async def test_every_type_is_described(document: Document) -> None:
    for name, schema in document["components"]["schemas"].items():
        if schema["type"] == "object":
            assert schema["description"], name


async def test_every_field_that_customers_send_or_get_is_described() -> None:
    schemas = documents()["customers"]["components"]["schemas"]
    fields = {
        f"{name}.{field}": schema
        for name, struct in schemas.items()
        for field, schema in struct.get("properties", {}).items()
    }

    assert [name for name, schema in fields.items() if not schema.get("description")] == []


async def test_bounds_that_backends_hold_are_stated() -> None:
    schemas = documents()["customers"]["components"]["schemas"]

    assert schemas["ZeroShotBody"]["properties"]["labels"]["maxItems"] == MAX_LABELS
    assert schemas["ClassifyBody"]["properties"]["top_k"]["anyOf"][0]["minimum"] == 1
    (_, listed) = schemas["ClassifyBody"]["properties"]["input"]["anyOf"]
    assert listed["minItems"] == 1


@both
async def test_no_schema_is_one_that_generators_of_clients_refuse(document: Document) -> None:
    def schemas(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if "type" in part or "enum" in part:
                yield part
            for value in part.values():
                yield from schemas(value)
        elif isinstance(part, list):
            for value in part:
                yield from schemas(value)

    for schema in schemas(document["components"]["schemas"]):
        assert schema.get("items") is not False
        assert "prefixItems" not in schema
        assert "enum" not in schema or schema["type"] == "string"


async def test_the_examples_are_requests() -> None:
    document = documents()["customers"]
    for body in BODIES:
        path = "/v1/infer/{model}" if body is InferBody else f"/v1/{body.task}"
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            msgspec.convert(example["value"], body)


async def test_every_operation_has_a_program_in_each_language_that_names_no_page() -> None:
    for _, path, operation in operations(documents()["customers"]):
        found = [sample["label"] for sample in operation.get("x-codeSamples", ())]

        assert found == ["curl", "Python", "JavaScript"], path
        assert not any("after=" in sample["source"] for sample in operation["x-codeSamples"])
        for sample in operation.get("x-codeSamples", ()):
            is_public = operation.get("security") == []
            assert ("SLUICEGATE_KEY" in sample["source"]) <= (not is_public), path


async def test_a_program_of_a_route_that_the_client_lacks_is_written_with_httpx() -> None:
    media = {"examples": {"example": {"value": {"model": "it's", "on": True}}}}
    operation = {
        "operationId": "create",
        "tags": ["another"],
        "requestBody": {"content": {"application/json": media}},
        "parameters": [{"name": "id", "in": "path", "example": "a b"}],
    }

    shell, python, _ = (one["source"] for one in code_samples("put", "/v2/x/{id}", operation))

    assert "/v2/x/a%20b" in shell
    assert "-X PUT" in shell
    assert shlex.split(shell)[-1] == '{"model": "it\'s", "on": true}'
    compile(python, "sample", "exec")
    assert "'Authorization': f\"Bearer {os.environ['SLUICEGATE_KEY']}\"" in python
    assert "'Content-Type': 'application/json'" in python


async def test_the_page_loads_nothing_from_other_hosts(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    sources = re.findall(r'(?:src|href|data-url)="([^"]*)"', page.text)

    assert sources == ["data:,", "/openapi.json", "/openapi.json", "/docs/scalar.js"]
    assert re.findall(r"https?://", page.text) == []
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["referrer-policy"] == "no-referrer"


async def test_the_viewer_is_served_and_may_be_kept(client: httpx.AsyncClient) -> None:
    script = await client.get("/docs/scalar.js")

    assert script.headers["content-type"].startswith("text/javascript")
    assert "max-age" in script.headers["cache-control"]
    assert b"createApiReference" in script.content


async def test_a_client_without_gzip_gets_the_viewer_inflated(client: httpx.AsyncClient) -> None:
    plain = await client.get("/docs/scalar.js", headers={"Accept-Encoding": "identity"})
    packed = await client.get("/docs/scalar.js", headers={"Accept-Encoding": "gzip"})

    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.content == packed.content  # the client inflates it


async def test_the_page_does_not_send_examples_of_optional_parameters() -> None:
    for document in documents().values():
        for _, path, operation in operations(document):
            for parameter in operation.get("parameters", ()):
                if not parameter["required"]:
                    examples = parameter.get("examples", {}).values()
                    assert "example" not in parameter, path
                    assert all(each["x-disabled"] for each in examples), path


async def test_litestar_serves_no_document_of_its_own(client: httpx.AsyncClient) -> None:
    for path in ("/schema", "/schema/openapi.json"):
        assert (await client.get(path)).status_code == 404
