"""Builds the OpenAPI documents of the two applications."""

from typing import Any

import msgspec
from jsonschema_rs import Draft202012Validator

from sluicegate.gateway.admin.app import HANDLERS
from sluicegate.gateway.admin.openapi import operators_document
from sluicegate.gateway.api.routes import customers_document
from sluicegate.gateway.dialects.registry import DIALECTS

Document = dict[str, Any]
METHODS = {"get", "put", "post", "delete"}


OF_DIALECTS = [handler for dialect in DIALECTS for handler in dialect.handlers]


def documents() -> dict[str, Document]:
    """Return the document of each listener."""
    return {
        "customers": msgspec.json.decode(customers_document("1.2.3", DIALECTS)),
        "operators": msgspec.json.decode(operators_document(HANDLERS)),
    }


def resolved(document: Document, part: Any) -> Any:
    """Return what `part` refers to, or itself."""
    while isinstance(part, dict) and "$ref" in part:
        place: Any = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            place = place[name]
        part = place
    return part


def operations(document: Document) -> list[tuple[str, str, dict[str, Any]]]:
    """Return method, path and operation of all there are."""
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def conforms(document: Document, schema: Any, value: object) -> None:
    """Fail unless `value` is what `schema`, a part of the document, says."""
    whole = {"allOf": [schema], "components": document["components"]}
    Draft202012Validator(whole).validate(value)


def parameter_examples(operation: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the examples of the parameters in `path`, `query` or `header`, by name."""
    found = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == place:
            named = parameter.get("examples", {"example": {"value": parameter.get("example")}})
            found[parameter["name"]] = named["example"]["value"]
    return {name: example for name, example in found.items() if example is not None}
