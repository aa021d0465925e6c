"""The generated pages are what their sources say, and leave nothing out."""

import re

import pytest

from gateway.errors import GatewayError
from tests.docs.tables import ROOT, defaults, first_cells, page
from tests.docs.test_api_page import CODES
from tests.docs.test_configuration_page import FIELDS, VARIABLES
from tests.support.documents import documents, operations
from tools.reference.api_pages import PAGES
from tools.reference.errors_page import ADVICE
from tools.reference.pages import pages
from tools.reference.units import unit

GENERATED = pages()
LISTED = first_cells(GENERATED["reference/configuration.md"])
ERRORS = page("docs/reference/errors.md")
DOCUMENTS = documents()
ROUTES = {
    f"{method.upper()} {path}": operation
    for method, path, operation in operations(DOCUMENTS["customers"])
}
OPERATORS = {
    f"{method.upper()} {path}": operation
    for method, path, operation in operations(DOCUMENTS["operators"])
}


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_a_generated_page_is_as_its_sources_say(name: str) -> None:
    written = page(f"docs/{name}")

    assert written == GENERATED[name], "run `make reference`"


def test_every_page_of_the_reference_is_generated() -> None:
    written = {
        path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/reference/**/*.md")
    }

    assert written == GENERATED.keys()


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_is_in_the_catalogue_with_advice(code: str) -> None:
    (row,) = re.findall(
        rf"^\| `{code}` \| (\d+) \| (yes|no) \| (.+) \| (.+) \|$", ERRORS, re.MULTILINE
    )

    assert row[0] == str(CODES[code])
    assert row[3] == ADVICE[code]


def test_the_catalogue_has_advice_for_no_other_error() -> None:
    assert ADVICE.keys() == CODES.keys() >= {GatewayError.code}


@pytest.mark.parametrize("name", sorted(FIELDS.keys() | VARIABLES.keys()))
def test_every_field_and_variable_is_in_the_reference(name: str) -> None:
    assert name in LISTED


def test_the_reference_has_the_defaults_of_the_page_beside_it() -> None:
    told = defaults(page("docs/configuration.md"))

    listed = defaults(
        re.sub(
            r"^(\| [^|]+\|)[^|]+\|",
            r"\1",
            GENERATED["reference/configuration.md"],
            flags=re.MULTILINE,
        )
    )

    for name in FIELDS.keys() | VARIABLES.keys():
        assert listed[name].strip("`") == told[name].strip("`"), name


def test_a_number_of_no_known_unit_is_an_error_that_says_where_to_add_it() -> None:
    with pytest.raises(LookupError, match=r"`cache\.strength`.*units\.py"):
        unit("cache.strength")


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_is_on_one_page_with_the_programs_that_a_test_runs(route: str) -> None:
    tags = set(ROUTES[route]["tags"])
    (own,) = [one for one in PAGES if tags & set(one.tags)]
    text = GENERATED[f"reference/api/{own.file}.md"]

    (section,) = re.findall(
        rf"^## {re.escape(route)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )

    sources = [sample["source"].rstrip() for sample in ROUTES[route]["x-codeSamples"]]
    assert len(sources) == len(re.findall(r'^```\w+ title="', section, re.MULTILINE))
    assert all(f"\n{source}\n```" in section for source in sources)


@pytest.mark.parametrize("route", sorted(OPERATORS))
def test_every_route_of_operators_is_on_their_page_with_its_programs(route: str) -> None:
    text = GENERATED["reference/api/operators.md"]

    (section,) = re.findall(
        rf"^## {re.escape(route)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )

    samples = OPERATORS[route]["x-codeSamples"]
    assert [sample["label"] for sample in samples] == ["curl", "Python", "JavaScript"]
    assert all(f"\n{sample['source'].rstrip()}\n```" in section for sample in samples)
