"""Tests that the structure of the product is counted, and that its bounds are held."""

import pytest

from tools.sources import Module, parse
from tools.structure import QUESTION_WORDS, check_structure, measure_structure, shared_names


def module(path: str, source: str = "") -> Module:
    return parse(path, source)


def test_an_import_is_an_arrow_once_between_modules_and_once_between_tops() -> None:
    modules = [
        module("gateway/__init__.py"),
        module("gateway/api/__init__.py"),
        module("gateway/api/routes.py", "from gateway.api import rules\nimport json"),
        module("gateway/api/rules.py", "from gateway.types import A, B\nimport gateway.types"),
        module("gateway/types.py"),
    ]

    found = measure_structure(modules)

    assert (found.module_arrows, found.package_arrows) == (2, 1)
    assert (found.packages, found.top_modules) == (2, 1)


def test_the_constructor_with_most_arguments_is_named() -> None:
    source = (
        "class A:\n    def __init__(self, a, *, b, c): ...\n"
        "class B:\n    def __init__(self, a): ...\n"
    )

    found = measure_structure([module("backends/x.py", source)])

    assert (found.largest_constructor, found.largest_constructor_of) == (3, "backends.x.A")


def test_a_public_name_of_two_classes_of_one_package_is_named() -> None:
    modules = [
        module("gateway/a.py", "class Plan: ...\nclass _Own: ..."),
        module("gateway/b.py", "class Plan: ...\nclass _Own: ..."),
        module("backends/b.py", "class Plan: ..."),
    ]

    (problem,) = check_structure(modules)

    assert (problem.path, problem.text) == (
        "gateway/a.py",
        "`Plan` is also a class in gateway/b.py: rename one",
    )
    assert shared_names("backends", modules) == {}


@pytest.mark.parametrize("word", sorted(QUESTION_WORDS))
def test_a_docstring_that_begins_with_a_question_word_is_named(word: str) -> None:
    wrong = module("loadtests/a.py", f'"""{word} is measured."""')
    right = module("loadtests/b.py", '"""Measures what is missed."""')

    (problem,) = check_structure([wrong, right])

    assert problem.path == "loadtests/a.py"
    assert word in problem.text


def test_more_than_five_modules_at_the_top_of_the_gateway_are_too_many() -> None:
    inside = [module("gateway/__init__.py"), module("gateway/api/routes.py")]
    most = [module(f"gateway/m{number}.py") for number in range(5)]

    assert not list(check_structure([*inside, *most]))
    (problem,) = check_structure([*inside, *most, module("gateway/m5.py")])

    assert problem.path == "gateway"
    assert "6 modules at the top" in problem.text
