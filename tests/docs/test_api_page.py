"""docs/api.md tells of every item code, route and field."""

import ast
from collections.abc import Iterator

import msgspec
import pytest

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.schemas import BODIES, Body, InferBody
from sluicegate.gateway.dialects.registry import DIALECTS
from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.types import Usage
from tests.docs.tables import ROOT, first_cells, page, rows
from tools.reference.api_pages import PAGES

PAGE = page("docs/api.md")


def errors(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from errors(below)


def item_codes() -> set[str]:
    """Return every code that a backend refuses an item with."""
    found = set()
    for path in (ROOT / "backends").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ItemRefused":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


CODES = {
    error.code: error.status
    for error in errors(GatewayError)
    if error.__module__ == GatewayError.__module__
}


def test_every_code_of_an_item_is_documented() -> None:
    codes = item_codes()

    assert "input_too_long" in codes
    assert codes <= first_cells(PAGE)


@pytest.mark.parametrize("body", BODIES)
def test_every_field_of_a_request_is_documented_beside_its_route(body: type[Body]) -> None:
    suffix = "/{model}" if body is InferBody else ""
    route = f"`POST /v1/{body.task}{suffix}`"

    (row,) = [row for row in rows(PAGE) if row[0] == route]

    shared = {"on_error", "truncate"}
    for field in msgspec.structs.fields(body):
        assert f"`{field.name}`" in (PAGE if field.name in shared else row[1])


def test_every_number_of_the_usage_is_documented() -> None:
    assert set(Usage.__struct_fields__) <= first_cells(PAGE)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_dialect_is_among_the_clients_of_other_products(dialect: Dialect) -> None:
    (file,) = [one.file for one in PAGES if dialect.name in one.tags]

    assert any(f"(reference/{file}.md)" in row[0] for row in rows(PAGE))
