"""The generated pages are what their sources say, and leave nothing out.

What is tested is named by the written pages, and a test compares these names with the sources:
the pages are generated where a test needs them, and not in each process that collects tests.
"""

import functools
import re
from typing import Any

import pytest

from gateway.admin.operators import Role
from gateway.errors import GatewayError
from tests.docs.tables import ROOT, page
from tests.docs.test_api_page import CODES
from tests.support.documents import documents, operations
from tools.reference.api_pages import PAGES
from tools.reference.configuration_page import (
    backend_entries,
    document_entries,
    gateway_entries,
)
from tools.reference.errors_page import ADVICE
from tools.reference.pages import pages
from tools.reference.units import unit

WRITTEN = sorted(
    path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/reference/**/*.md")
)
ERRORS = page("docs/reference/errors.md")
_OPERATORS = "reference/api/operators.md"
_ROUTE = re.compile(r"^## ([A-Z]+ /.*)$", re.MULTILINE)
OPERATORS = sorted(_ROUTE.findall(page(f"docs/{_OPERATORS}")))
ROUTES = sorted(
    route
    for name in WRITTEN
    if name.startswith("reference/api/") and name != _OPERATORS
    for route in _ROUTE.findall(page(f"docs/{name}"))
)
generated = functools.cache(pages)


@functools.cache
def described(document: str) -> dict[str, dict[str, Any]]:
    """Return the operations of a document by method and path."""
    return {
        f"{method.upper()} {path}": operation
        for method, path, operation in operations(documents()[document])
    }


@pytest.mark.parametrize("name", WRITTEN)
def test_a_generated_page_is_as_its_sources_say(name: str) -> None:
    written = page(f"docs/{name}")

    assert written == generated()[name], "run `make reference`"


def test_every_page_of_the_reference_is_generated() -> None:
    assert sorted(generated()) == WRITTEN


@pytest.mark.parametrize(("document", "routes"), [("customers", ROUTES), ("operators", OPERATORS)])
def test_every_route_is_on_a_page_once(document: str, routes: list[str]) -> None:
    assert routes == sorted(described(document))


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_is_in_the_catalogue_with_advice(code: str) -> None:
    (row,) = re.findall(
        rf"^\| `{code}` \| (\d+) \| (yes|no) \| (.+) \| (.+) \|$", ERRORS, re.MULTILINE
    )

    assert row[0] == str(CODES[code])
    assert row[3] == ADVICE[code]


def test_the_catalogue_has_advice_for_no_other_error() -> None:
    assert ADVICE.keys() == CODES.keys() >= {GatewayError.code}


def test_every_field_and_variable_has_a_docstring() -> None:
    sections = (*document_entries().values(), gateway_entries(), backend_entries())

    assert [entry.name for section in sections for entry in section if not entry.meaning] == []


def test_a_number_of_no_known_unit_is_an_error_that_says_where_to_add_it() -> None:
    with pytest.raises(LookupError, match=r"`cache\.strength`.*units\.py"):
        unit("cache.strength")


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_is_on_one_page_with_the_programs_that_a_test_runs(route: str) -> None:
    operation = described("customers")[route]
    tags = set(operation["tags"])
    (own,) = [one for one in PAGES if tags & set(one.tags)]
    text = generated()[f"reference/api/{own.file}.md"]

    (section,) = re.findall(
        rf"^## {re.escape(route)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )

    sources = [sample["source"].rstrip() for sample in operation["x-codeSamples"]]
    assert len(sources) == len(re.findall(r'^```\w+ title="', section, re.MULTILINE))
    assert all(f"\n{source}\n```" in section for source in sources)


@pytest.mark.parametrize("route", OPERATORS)
def test_every_route_of_operators_is_on_their_page_with_its_programs(route: str) -> None:
    text = generated()[_OPERATORS]

    (section,) = re.findall(
        rf"^## {re.escape(route)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )

    samples = described("operators")[route]["x-codeSamples"]
    assert [sample["label"] for sample in samples] == ["curl", "Python", "JavaScript"]
    assert all(f"\n{sample['source'].rstrip()}\n```" in section for sample in samples)


@pytest.mark.parametrize("route", OPERATORS)
def test_every_route_of_operators_says_who_may_call_it(route: str) -> None:
    (section,) = re.findall(
        rf"^## {re.escape(route)}\n(.*?)(?=^## |\Z)",
        page(f"docs/{_OPERATORS}"),
        re.MULTILINE | re.DOTALL,
    )

    is_public = described("operators")[route].get("security") == []
    roles = re.findall(r"^Needs the role `(\w+)`\.$", section, re.MULTILINE)
    assert (roles == []) == is_public
    assert set(roles) <= set(Role)
