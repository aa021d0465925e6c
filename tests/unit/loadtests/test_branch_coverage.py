"""Tests what counts as a line and as a branch that was reached."""

import importlib.util
from pathlib import Path

import pytest

from loadtests.branch_coverage import Coverage

SOURCE = """\
def size(n):
    if n > 10:
        return "large"
    for _ in range(n):
        n += 1
    return "small"
"""


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((), "1 of      6 lines      0 of      4 branches"),
        ((0,), "4 of      6 lines      2 of      4 branches"),
        ((0, 1), "5 of      6 lines      3 of      4 branches"),
        ((0, 1, 11), "6 of      6 lines      4 of      4 branches"),
    ],
)
def test_lines_and_branches_count_once_reached(
    tmp_path: Path, calls: tuple[int, ...], expected: str
) -> None:
    (tmp_path / "sluicegate").mkdir()
    (tmp_path / "gateway").mkdir()
    (tmp_path / "sluicegate" / "gateway").symlink_to("../gateway")
    (tmp_path / "gateway" / "sizes.py").write_text(SOURCE)
    (tmp_path / "kept").mkdir()
    path = tmp_path / "sluicegate" / "gateway" / "sizes.py"
    spec = importlib.util.spec_from_file_location("sizes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    coverage = Coverage(tmp_path, ("gateway",))

    coverage.start()
    spec.loader.exec_module(module)
    for call in calls:
        module.size(call)
    coverage.save(tmp_path / "kept")

    lines = list(coverage.report(tmp_path / "kept"))
    assert [line.split(maxsplit=1)[1].strip() for line in lines] == [expected, expected]
