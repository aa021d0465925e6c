"""The check of habits finds violations and nothing else."""

from pathlib import Path

import pytest

from tools.check_habits import hosts, problems_of, version_problem

PRODUCT, TEST = "gateway/example.py", "tests/unit/test_example.py"


@pytest.mark.parametrize(
    "catch", ["except Exception:", "except:", "except (ValueError, BaseException) as e:"]
)
def test_a_broad_handler_needs_a_reason(catch: str) -> None:
    bare = f"try:\n    f()\n{catch}\n    g()\n"
    silenced = f"try:\n    f()\n{catch}  # noqa: BLE001\n    g()\n"
    explained = f"try:\n    f()\n{catch}  # noqa: BLE001 - one must not hurt others\n    g()\n"

    for wrong in (bare, silenced):
        (problem,) = problems_of(PRODUCT, wrong)
        assert problem.startswith(f"{PRODUCT}:3:")
    assert list(problems_of(PRODUCT, explained)) == []


def test_to_suppress_everything_needs_a_reason_and_a_narrow_handler_none() -> None:
    broad = "with contextlib.suppress(Exception):\n    f()\n"
    narrow = "with suppress(KeyError):\n    f()\ntry:\n    f()\nexcept OSError:\n    g()\n"

    assert len(list(problems_of(PRODUCT, broad))) == 1
    assert list(problems_of(PRODUCT, narrow)) == []


# The names are put in here, so that this file does not hold what the check looks for.
@pytest.mark.parametrize(
    ("line", "is_problem"),
    [
        ("{time}.sleep(x)", True),
        ("await {asyncio}.sleep(0.1)", True),
        ("await {asyncio}.sleep(interval)", False),
        ("await {asyncio}.sleep(0)", False),
    ],
)
def test_a_test_may_poll_but_not_sleep(line: str, *, is_problem: bool) -> None:
    source = f"async def f():\n    {line.format(time='time', asyncio='asyncio')}\n"

    assert len(list(problems_of(TEST, source))) == is_problem
    assert list(problems_of(PRODUCT, source)) == []
    assert list(problems_of("tests/unit/testing/simulation/test_x.py", source)) == []


def test_a_line_that_names_a_package_host_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "x.txt").write_text("a==1\n--{}-url x\n".format("index"))
    (tmp_path / "README.md").write_text("see https://{}.org\n".format("pypi"))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "x.txt").write_text("https://{}.org\n".format("pypi"))

    places = [problem.rsplit(":", 1)[0] for problem in hosts(tmp_path)]

    assert places == ["README.md:1", "requirements/x.txt:2"]


@pytest.mark.parametrize(("version", "is_right"), [("1.2.3", True), ("1.3.0", False)])
def test_changelog_and_project_name_one_version(
    tmp_path: Path, version: str, *, is_right: bool
) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-01-01\n")

    assert (not list(version_problem(tmp_path))) is is_right
