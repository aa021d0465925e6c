"""The generated pages are what their sources say, and leave nothing out."""

import functools
import re
from typing import Any

from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.operations.operators import Role
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
    if name.startswith(("reference/api/", "reference/clients/")) and name != _OPERATORS
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


def test_the_generated_pages_are_as_their_sources_say() -> None:
    written = {name: page(f"docs/{name}") for name in WRITTEN}

    assert written.keys() == generated().keys()
    for name, text in written.items():
        assert text == generated()[name], f"{name}: run `make reference`"


def test_every_route_is_on_a_page_once() -> None:
    assert sorted(described("customers")) == ROUTES
    assert sorted(described("operators")) == OPERATORS


def test_every_error_is_in_the_catalogue_with_status_and_advice() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (?:yes|no) \| .+ \| (.+) \|$", ERRORS, re.MULTILINE)

    assert {code: (int(status), advice) for code, status, advice in rows} == {
        code: (status, ADVICE[code]) for code, status in CODES.items()
    }
    assert ADVICE.keys() == CODES.keys() >= {GatewayError.code}


def test_every_field_and_variable_has_a_docstring() -> None:
    sections = (*document_entries().values(), gateway_entries(), backend_entries())

    assert [entry.name for section in sections for entry in section if not entry.meaning] == []


def sections(text: str) -> dict[str, str]:
    """Return what a page says of each route."""
    parts = _ROUTE.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_route_is_on_one_page_with_the_programs_that_a_test_runs() -> None:
    for route, operation in described("customers").items():
        tags = set(operation["tags"])
        (own,) = [one for one in PAGES if tags & set(one.tags)]
        section = sections(page(f"docs/reference/{own.file}.md"))[route]

        samples = operation["x-codeSamples"]
        shown = samples if own.file.startswith("api/") else samples[:1]
        sources = [sample["source"].rstrip() for sample in shown]
        assert len(sources) == len(re.findall(r'^```\w+ title="', section, re.MULTILINE)), route
        assert all(f"\n{source}\n```" in section for source in sources), route


def test_every_route_of_operators_has_its_command_and_says_who_may_call_it() -> None:
    told = sections(page(f"docs/{_OPERATORS}"))
    for route, operation in described("operators").items():
        samples = operation["x-codeSamples"]
        assert [sample["label"] for sample in samples] == ["curl", "Python", "JavaScript"], route
        assert f"\n{samples[0]['source'].rstrip()}\n```" in told[route], route
        roles = re.findall(r"^Needs the role `(\w+)`\.$", told[route], re.MULTILINE)
        assert (roles == []) == (operation.get("security") == []), route
        assert set(roles) <= set(Role), route
