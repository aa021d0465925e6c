"""Links from the docs into the code name what is defined there."""

import ast
import re

import pytest

from tests.docs.tables import ROOT, page

LINK = re.compile(r"\[`([^`]+)`\]\(((?:\.\./)+(?:gateway|backends|loadtests|tools)/[^)#]+\.py)\)")
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/*.md"))]


def defined(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Return the names of classes, functions, methods and constants."""
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            names |= {prefix + node.name} | defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(prefix + node.name)
        elif isinstance(node, ast.Assign):
            names |= {prefix + ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            names.add(prefix + ast.unparse(node.target))
    return names


@pytest.mark.parametrize("name", PAGES)
def test_every_name_that_is_linked_is_defined_in_its_file(name: str) -> None:
    missing = []
    for word, target in LINK.findall(page(name)):
        path = ((ROOT / name).parent / target).resolve()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        names = defined(ast.parse(text).body)
        if not path.exists() or (word not in names and word != path.name):
            missing.append(f"{word} in {target}")

    assert missing == []


@pytest.mark.parametrize("name", ["docs/reading.md", "docs/architecture.md"])
def test_every_link_into_the_code_names_something(name: str) -> None:
    links = re.findall(r"\]\((?:\.\./)+(?:gateway|backends)/[^)]*\)", page(name))

    assert len(links) == len(LINK.findall(page(name))) > 0
