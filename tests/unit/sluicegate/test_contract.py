"""The client has a method for each route, a class for each error and a field for each value."""

import inspect
import subprocess
import sys
from typing import Any

import httpx
import pytest

import sluicegate
from sluicegate import AsyncSluicegate, Sluicegate
from sluicegate.client import results, routes
from sluicegate.client.errors import ApiError, InvalidRequest, error_of
from sluicegate.gateway.api.openapi_parts import codes, problem_example
from sluicegate.gateway.errors import GatewayError
from tests.support.documents import Document, documents, operations, resolved

# Dialects are there for clients of their own, but two native routes are among them.
OWN = {"inference", "metadata", "health"}
NAMES = [
    name
    for name, made in inspect.getmembers(routes, inspect.isfunction)
    if made.__module__ == routes.__name__ and not name.startswith("_")
]
Described = dict[str, tuple[str, str, dict[str, Any]]]
# Headers are `Options`; what is sent in the path is named in the method as elsewhere.
# How vectors travel.
_OWN_MATTER = {"encoding_format"}
_FOR_OTHERS = {"object", "id", "created", "owned_by", "models"}
_ALIASES = {"input": {"texts", "items"}, "from": {"since"}, "to": {"until"}}


@pytest.fixture(scope="module")
def document() -> Document:
    return documents()["customers"]


@pytest.fixture(scope="module")
def described(document: Document) -> Described:
    """Method, path and operation by name."""
    return {
        operation["operationId"]: (method, path, operation)
        for method, path, operation in operations(document)
        if OWN & set(operation["tags"]) or operation["operationId"] in ("guard", "route")
    }


def test_the_client_knows_every_route_and_no_other(described: Described) -> None:
    assert sorted(described) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("client", [Sluicegate, AsyncSluicegate])
def test_every_route_has_a_method_with_its_parameters(
    client: type, name: str, document: Document, described: Described
) -> None:
    _, _, operation = described[name]
    wanted = {one["name"] for one in operation.get("parameters", ()) if one["in"] != "header"}
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        wanted |= set(resolved(document, schema)["properties"]) - _OWN_MATTER

    method = getattr(client, name)

    given = set(inspect.signature(method).parameters) - {"self"}
    assert all(_ALIASES.get(field, {field}) & given for field in wanted)
    assert method.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_every_call_goes_to_its_route(name: str, described: Described) -> None:
    method, path, operation = described[name]
    make = getattr(routes, name)
    places = {one["name"]: "a/b" for one in operation.get("parameters", ()) if one["in"] == "path"}
    needed = [
        ["x"] if parameter.kind is parameter.KEYWORD_ONLY else "a/b"
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is parameter.empty
    ]
    names = [
        parameter.name
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is parameter.empty
    ]

    call = make(**dict(zip(names, needed, strict=True)))

    assert call.method == method.upper()
    assert call.path == path.format(**dict.fromkeys(places, "a%2Fb"))


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_an_answer_is_read(
    name: str, document: Document, described: Described
) -> None:
    _, _, operation = described[name]
    content = resolved(document, operation["responses"]["200"])["content"]["application/json"]

    _has_fields(document, _kind_of(getattr(routes, name)), resolved(document, content["schema"]))


def _kind_of(make: Any) -> Any:
    (kind,) = inspect.signature(make).return_annotation.__args__
    return kind


def _has_fields(document: Document, kind: Any, schema: dict[str, Any]) -> None:
    origin = getattr(kind, "__origin__", kind)
    assert set(schema["properties"]) - _FOR_OTHERS <= set(origin.__struct_fields__)
    results_of = schema["properties"].get("results", {}).get("items", {})
    for alternative in results_of.get("anyOf", ()):
        _has_fields(document, kind.__args__[0], resolved(document, alternative))


def test_results_that_are_structs_in_the_document_are_whole(document: Document) -> None:
    for name in (
        "Usage",
        "RequestUsage",
        "PastRequest",
        "UsageLine",
        "Entity",
        "LabelScore",
        "ItemError",
        "Finding",
        "GuardResult",
        "RouteResult",
    ):
        documented = set(document["components"]["schemas"][name]["properties"])

        assert documented == set(getattr(results, name).__struct_fields__)


def test_every_code_of_the_gateway_has_a_class_that_says_more_than_its_status() -> None:
    kinds = {kind.code: kind for kind in _all(GatewayError)}
    assert set(kinds) == codes()
    for code, kind in kinds.items():
        response = httpx.Response(
            kind.status, json=problem_example(kind), request=httpx.Request("GET", "http://gateway")
        )

        error = error_of(response)

        assert (error.code, error.status) == (code, kind.status)
        assert error.request_id.startswith("req_")
        plain = {"internal_error", "not_implemented", "http_version_not_supported"}
        assert (type(error) is ApiError) == (code in plain)
        assert isinstance(error, InvalidRequest) <= (400 <= kind.status < 500)
        assert error.is_retryable or not kind.retryable


def _all(kind: type[GatewayError]) -> set[type[GatewayError]]:
    # Later classes repeat the code of the class that they are a case of.
    return {kind}.union(*(_all(below) for below in kind.__subclasses__()))


def test_the_client_loads_neither_gateway_nor_backends_and_says_its_version() -> None:
    program = (
        "import sys, sluicegate; print(sluicegate.__version__, sluicegate.Sluicegate.__name__,"
        " [name for name in sys.modules if name.split('.')[:2] in"
        " (parts.split('.') for parts in ('sluicegate.gateway', 'sluicegate.backends'))])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"{sluicegate.__version__} Sluicegate []\n"


def test_without_httpx_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['httpx'] = None; import sluicegate; sluicegate.Sluicegate"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "pip install '.[client]'" in done.stderr


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="`key`") as caught:
        Sluicegate(key=key)

    assert key not in str(caught.value)


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="`url` must begin with"):
        Sluicegate("localhost:8080")


def test_address_and_key_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_URL", "https://gateway.example/below/")
    monkeypatch.setenv("SLUICEGATE_KEY", "sk-of-the-environment")

    with Sluicegate() as client:
        request = client._request("GET", "/v1/models", httpx.Headers())

    assert str(request.url) == "https://gateway.example/below/v1/models"
    assert request.headers["authorization"] == "Bearer sk-of-the-environment"
