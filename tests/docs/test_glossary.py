"""docs/glossary.md explains every word once, and the noun of every public class."""

import ast
import re
from collections import Counter

import pytest

from tests.docs.tables import ROOT, page, rows

PAGE = page("docs/glossary.md")
# Errors are explained where they are drawn, in errors.py; the others are nouns of the language.
PLAIN = {"error", "settings", "statistics"}


def words(cell: str) -> list[str]:
    return [word.strip().strip("`").lower() for word in cell.split(",") if word.strip()]


def singular(noun: str) -> str:
    for ending, instead in (("ies", "y"), ("s", "")):
        if noun.endswith(ending) and not noun.endswith("ss"):
            return noun.removesuffix(ending) + instead
    return noun


@pytest.fixture(scope="module")
def public_classes() -> list[ast.ClassDef]:
    """The classes of the product, for which all of it is parsed."""
    paths = [
        path for folder in ("gateway", "backends", "bulk") for path in (ROOT / folder).rglob("*.py")
    ]
    body = [node for path in sorted(paths) for node in ast.parse(path.read_bytes()).body]
    return [node for node in body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


@pytest.fixture(scope="module")
def nouns(public_classes: list[ast.ClassDef]) -> dict[str, str]:
    """The nouns of the language, each with a class that it is the noun of."""
    errors = exceptions(public_classes)
    return {
        head_noun(c.name): c.name
        for c in public_classes
        if c.name not in errors and head_noun(c.name) not in PLAIN
    }


def exceptions(classes: list[ast.ClassDef]) -> set[str]:
    """Return the names of the classes that are exceptions, by their bases."""
    found = {"Exception", "BaseException", "ValueError", "ConnectionError", "OSError"}
    bases = {c.name: {ast.unparse(base) for base in c.bases} for c in classes}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {name for name, known in bases.items() if known & found}
    return found


def head_noun(name: str) -> str:
    """Return the last word of a name in CamelCase, in lower case."""
    return str(re.findall(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z][a-z0-9]+", name)[-1]).lower()


TABLES = [row for row in rows(PAGE) if row[0] not in {"word", "noun"}]
TERMS = [word for row in TABLES for word in words(row[0])]
FORBIDDEN = {word for row in TABLES for word in words(row[2] if len(row) > 2 else "")}


def test_no_word_is_explained_twice() -> None:
    assert [word for word, times in Counter(TERMS).items() if times > 1] == []


def test_no_two_words_are_explained_alike() -> None:
    meanings = Counter(row[1].lower() for row in TABLES)

    assert [meaning for meaning, times in meanings.items() if times > 1] == []


def test_a_word_that_is_not_said_is_not_explained() -> None:
    assert FORBIDDEN & set(TERMS) == set()


def test_every_noun_of_a_public_class_is_explained(nouns: dict[str, str]) -> None:
    known = {singular(word.split()[-1]) for word in TERMS}

    assert {noun: name for noun, name in nouns.items() if singular(noun) not in known} == {}


def test_every_noun_of_the_table_of_roles_is_that_of_a_public_class(
    public_classes: list[ast.ClassDef],
) -> None:
    used = {singular(head_noun(c.name)) for c in public_classes}
    roles = PAGE[PAGE.index("## Roles") :]

    assert [w for row in rows(roles)[1:] for w in words(row[0]) if singular(w) not in used] == []


def test_no_public_class_is_named_by_a_word_that_is_not_said(nouns: dict[str, str]) -> None:
    assert {noun: name for noun, name in nouns.items() if noun in FORBIDDEN} == {}
