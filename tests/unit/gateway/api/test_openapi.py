"""The OpenAPI document is whole, and the page that shows it names no other host."""

import re
from collections.abc import Iterator
from typing import Any

from gateway.api import docs
from gateway.api.openapi import with_inference_routes


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def document() -> dict[str, Any]:
    return with_inference_routes({"openapi": "3.1.0", "info": {}, "paths": {"/v1/models": {}}})


def test_every_inference_route_is_there_beside_the_others() -> None:
    paths = document()["paths"]

    assert {
        *("/v1/classify", "/v1/zero-shot", "/v1/choose", "/v1/rerank"),
        *("/v1/entities", "/v1/embed", "/v1/infer/{model}", "/v1/models"),
    } == set(paths)


def test_every_reference_leads_somewhere() -> None:
    whole = document()

    for reference in references(whole):
        part: Any = whole
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]


def test_operations_have_names_of_their_own() -> None:
    names = [path["post"]["operationId"] for path in document()["paths"].values() if path]

    assert len(set(names)) == len(names)


def test_the_page_loads_nothing_from_other_hosts() -> None:
    assert re.findall(r"https?://", docs._PAGE) == []
    assert "default-src 'none'" in docs._POLICY
