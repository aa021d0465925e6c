"""The GPU script runs from end to end on a machine without a GPU, and says what it lacks."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadtests.gpu.results import FILE, Report

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]

# Beside these, a whole system is measured, as `tests/e2e/test_gpu_topology.py` does.
MEASURED = ("check", "session", "pytorch", "tensorrt", "engine", "peer")


def run_script(output: Path, *arguments: str, only: tuple[str, ...]) -> tuple[str, Report]:
    sections = [word for section in only for word in ("--only", section)]
    command = [
        sys.executable,
        "-m",
        "loadtests",
        "gpu",
        "--output",
        str(output),
        "--tiny",
        *arguments,
    ]
    done = subprocess.run(
        [*command, *sections], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, msgspec.json.decode((output / FILE).read_bytes(), type=Report)


def problems(report: Report, output: Path) -> dict[str, str]:
    return {
        section: f"{state.reason}\n{(output / f'{section}.log').read_text()}"
        for section, state in report.sections.items()
        if state.status not in {"done", "skipped"}
    }


def test_a_dry_run_measures_every_section_on_the_cpu(tmp_path: Path) -> None:
    """Answers first; forms without a kernel here are named and never timed."""
    arguments = ("--provider", "cpu", "--seconds", "0.1", "--within", "3600")
    _, report = run_script(tmp_path, *arguments, only=MEASURED)

    assert problems(report, tmp_path) == {}
    assert list(report.sections) == list(MEASURED)
    wrong = {name for name, each in report.figures.items() if not each.passed}
    assert all("packed" in name or "bf16" in name for name in wrong)
    for section, count in {"pytorch": 4, "tensorrt": 2, "engine": 3, "peer": 2}.items():
        found = report.sections[section]
        assert found.status == "skipped" or len(found.figures) == count
        assert all(figure.rate for figure in found.figures.values())
    timed = {name for name in report.figures if name.startswith("session")}
    assert "session, minilm-l6, 256x24, fp16-ranges" in timed
    assert "session, bert-base, 256x128, fastest, 2 in flight" in timed
    assert not any("packed" in name or "bf16" in name for name in timed)


def test_nothing_is_begun_for_which_there_is_no_time(tmp_path: Path) -> None:
    printed, report = run_script(tmp_path, "--within", "1", only=("tensorrt",))

    assert "tensorrt: no time is left" in printed
    assert report.figures == {}


def test_without_a_gpu_nothing_is_timed(tmp_path: Path) -> None:
    """The CPU never stands in for a GPU."""
    _, report = run_script(tmp_path, "--within", "3600", only=("check", "session"))

    assert report.sections["check"].status == "failed"
    assert not any(each.error or each.rate for each in report.figures.values())
