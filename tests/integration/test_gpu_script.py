"""The GPU script runs from end to end on a machine without a GPU, and says what it lacks."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadtests.gpu.plan import BUDGETS, Measurement
from loadtests.gpu.table import Report

ROOT = Path(__file__).parents[2]


# `python -m loadtests gpu` imports all other benchmarks, too.
DIRECTLY, BY_NAME = ("loadtests.gpu",), ("loadtests", "gpu")


def run_script(
    output: Path, *arguments: str, script: tuple[str, ...] = DIRECTLY
) -> tuple[str, Report]:
    command = [sys.executable, "-m", *script, "--output", str(output), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (output / "report.json").read_bytes()
    return done.stdout, msgspec.json.decode(text, type=Report)


def lines(report: Report, section: str) -> list[Measurement]:
    return next(result.lines for result in report.results if result.section == section)


def problems(report: Report, output: Path) -> dict[str, str]:
    return {
        result.section: f"{result.reason}\n{(output / f'{result.section}.log').read_text()}"
        for result in report.results
        if result.status not in {"done", "skipped"}
    }


@pytest.mark.e2e
def test_a_dry_run_measures_every_section_on_the_cpu(tmp_path: Path) -> None:
    """Answers first; forms without a kernel here are named and never timed."""
    printed, report = run_script(
        tmp_path, "--provider", "cpu", "--tiny", "--seconds", "0.3", script=BY_NAME
    )

    assert problems(report, tmp_path) == {}
    assert [result.section for result in report.results] == list(BUDGETS)
    wrong = {line.what for line in lines(report, "check") if not line.passed}
    assert all("packed" in what or "bf16" in what for what in wrong)
    timed = {line.what for line in lines(report, "ceiling") if line.rate}
    assert "bert-base fp16-ranges" in timed
    assert not timed & wrong
    assert all(line.passed and line.rate for line in lines(report, "engine"))
    assert all(line.passed and line.rate for line in lines(report, "http"))
    assert "requests a minute" in printed.strip().splitlines()[-3]


def test_one_section_can_be_done_alone_and_again(tmp_path: Path) -> None:
    """What earlier runs found in the folder still counts."""
    run_script(tmp_path, "--provider", "cpu", "--tiny", "--only", "check")

    _, report = run_script(tmp_path, "--provider", "cpu", "--tiny", "--only", "ceiling")

    assert [result.section for result in report.results] == ["check", "ceiling"]
    assert len(lines(report, "ceiling")) > 4


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(tmp_path: Path) -> None:
    """The CPU never stands in for a GPU."""
    _, report = run_script(tmp_path, "--tiny", "--only", "check", "--only", "ceiling")

    assert not any(line.passed for line in lines(report, "check"))
    assert not any(line.rate for line in lines(report, "ceiling"))
