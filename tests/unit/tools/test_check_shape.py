"""Tests that the shape check finds violations and nothing else."""

from pathlib import Path

import pytest

from tools.check_shape import (
    broad_handlers,
    check,
    check_handlers,
    check_hosts,
    check_sizes,
    check_tests,
    check_types,
    check_version,
    measure,
)
from tools.sources import Module, function_lines, functions, parse


def module(source: str, path: str = "gateway/example.py") -> Module:
    return parse(path, source)


def project(root: Path, *, version: str = "1.2.3", newest: str = "1.2.3") -> Path:
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (root / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n## [{newest}] - 2026-01-01\n")
    return root


def test_a_module_of_more_than_600_lines_is_named() -> None:
    long, short = module("x = 1\n" * 601), module("x = 1\n" * 600)

    problems = list(check_sizes([long, short]))

    assert [problem.text for problem in problems] == [
        "the module has 601 lines, over 600: split it"
    ]


def test_a_function_is_measured_without_its_docstring() -> None:
    source = 'def f() -> None:\n    """One.\n\n    Three.\n    """\n    return None\n'

    (function,) = functions(module(source))

    assert function_lines(function) == 2


def test_a_function_of_more_than_60_lines_is_named_with_its_line() -> None:
    source = "x = 1\ndef f() -> None:\n" + "    x = 1\n" * 60

    (problem,) = check_sizes([module(source)])

    assert (problem.line, problem.text) == (2, "`f` has 61 lines, over 60: split it")


@pytest.mark.parametrize(
    ("source", "typed"),
    [
        ("def f(a: int, *b: int, c: int, **d: int) -> int: ...", True),
        ("class A:\n    def f(self, a: int) -> int: ...", True),
        ("class A:\n    @classmethod\n    def f(cls) -> int: ...", True),
        ("def f(a: int): ...", False),
        ("def f(a) -> int: ...", False),
        ("def f(*a) -> int: ...", False),
        ("async def f(*, a) -> int: ...", False),
    ],
)
def test_every_parameter_and_result_needs_an_annotation(source: str, *, typed: bool) -> None:
    problems = list(check_types([module(source)]))

    assert (not problems) is typed


@pytest.mark.parametrize(
    "catch",
    [
        "except Exception:",
        "except BaseException:",
        "except:",
        "except (ValueError, Exception) as e:",
    ],
)
def test_a_broad_handler_without_a_reason_is_a_problem(catch: str) -> None:
    bare = module(f"try:\n    f()\n{catch}\n    g()\n")
    silenced = module(f"try:\n    f()\n{catch}  # noqa: BLE001\n    g()\n")
    explained = module(
        f"try:\n    f()\n{catch}  # noqa: BLE001 - one must not hurt others\n    g()\n"
    )

    problems = list(check_handlers([bare, silenced, explained]))

    assert [problem.line for problem in problems] == [3, 3]


def test_suppressing_everything_is_a_broad_handler() -> None:
    source = "with contextlib.suppress(Exception):\n    f()\nwith suppress(KeyError):\n    f()\n"

    assert list(broad_handlers(module(source))) == [1]


def test_a_narrow_handler_needs_no_comment() -> None:
    source = "try:\n    f()\nexcept (ValueError, OSError):\n    g()\n"

    assert list(check_handlers([module(source)])) == []


@pytest.mark.parametrize(
    "line",
    [
        "from unittest import {mock}",
        "import unittest.{mock}",
        "from unittest.{mock} import Mock",
        "{time}.sleep(x)",
        "await {asyncio}.sleep(0.1)",
    ],
)
def test_mocks_and_sleeps_are_refused_in_tests_only(line: str) -> None:
    # The names are put in here, so that this file does not hold what it looks for.
    source = line.format(mock="mock", time="time", asyncio="asyncio")

    assert len(list(check_tests([module(source, "tests/unit/test_example.py")]))) == 1
    assert list(check_tests([module(source, "gateway/example.py")])) == []


@pytest.mark.parametrize("argument", ["interval", "0"])
def test_a_test_may_poll_with_a_named_interval_and_let_the_loop_turn(argument: str) -> None:
    source = f"async def poll() -> None:\n    await asyncio.sleep({argument})\n"

    assert list(check_tests([module(source, "tests/unit/test_example.py")])) == []


def test_a_line_that_names_a_package_host_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "x.txt").write_text("a==1\n--{}-url x\n".format("index"))
    (tmp_path / "README.md").write_text("see https://{}.org\n".format("pypi"))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "x.txt").write_text("https://{}.org\n".format("pypi"))

    found = [(problem.path, problem.line) for problem in check_hosts(tmp_path)]

    assert found == [("README.md", 1), ("requirements/x.txt", 2)]


def test_the_changelog_and_the_project_name_one_version(tmp_path: Path) -> None:
    assert list(check_version(project(tmp_path))) == []

    (problem,) = check_version(project(tmp_path, version="1.3.0"))

    assert problem.text == "the newest version is `1.2.3`, but pyproject.toml has `1.3.0`"


def test_numbers_are_of_the_sources_and_problems_of_every_tree(tmp_path: Path) -> None:
    for tree in ("gateway", "tests"):
        (project(tmp_path) / tree).mkdir()
        (tmp_path / tree / "a.py").write_text("def f(a) -> None:\n    g()\n")

    shape, _, problems = check(tmp_path)

    assert (shape.modules, shape.functions, shape.test_lines) == (1, 1, 2)
    assert shape.typed_share == 0
    assert [problem.path for problem in problems] == ["gateway/a.py", "tests/a.py"]


def test_a_project_without_functions_has_a_shape() -> None:
    shape = measure([])

    assert (shape.longest_function, shape.typed_share) == (0, 1)
