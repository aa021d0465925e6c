"""docs/architecture.md shows the modules that there are, in the layers that are enforced."""

import re
import tomllib

import pytest

from tests.docs.tables import ROOT, first_cells, page

PAGE = page("docs/architecture.md")
BLOCKS = {
    text.splitlines()[0]: text.splitlines()[1:]
    for text in re.findall(r"^```layers\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
SECTIONS = {
    "gateway": "### The gateway",
    "backends": "### A backend",
    "bulk": "### Bulk jobs",
    "sluicegate": "### The client",
}


def layers(package: str) -> list[str]:
    """Return the layers of a package as the import contract has them."""
    project = tomllib.loads(page("pyproject.toml"))
    contracts = project["tool"]["importlinter"]["contracts"]
    return next(list(c["layers"]) for c in contracts if c.get("containers") == [package])


def modules(package: str) -> set[str]:
    """Return the packages and modules directly below a package."""
    names = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    return names | {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def section(title: str) -> str:
    return PAGE.partition(title)[2].partition("\n| rule |")[0].partition("\n### ")[0]


@pytest.mark.parametrize("package", SECTIONS)
def test_the_map_has_the_layers_of_the_import_contract(package: str) -> None:
    assert BLOCKS[package] == layers(package)


@pytest.mark.parametrize("package", SECTIONS)
def test_every_module_is_in_the_map_and_no_other(package: str) -> None:
    assert set(re.findall(r"\w+", " ".join(BLOCKS[package]))) == modules(package)


@pytest.mark.parametrize("package", SECTIONS)
def test_the_page_says_what_each_module_does(package: str) -> None:
    assert first_cells(section(SECTIONS[package])) == modules(package)


ANSWERS = PAGE.partition("## Where is it decided")[2].partition("\n## ")[0]


def test_every_question_is_answered_by_at_most_three_files() -> None:
    questions = [line for line in ANSWERS.splitlines() if "? |" in line]

    assert len(questions) >= 10
    assert all(
        1 <= len(set(re.findall(r"\(\.\./([^)]+)\)", q))) <= 3 or "(#" in q for q in questions
    )


@pytest.mark.parametrize("paragraph", ANSWERS.split("\n### ")[1:])
def test_a_paragraph_that_says_more_is_short_and_links_to_the_code(paragraph: str) -> None:
    lines = [line for line in paragraph.splitlines()[1:] if line]

    assert len(lines) <= 8
    assert "](../" in paragraph
