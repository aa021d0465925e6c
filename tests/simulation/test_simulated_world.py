"""A few seeds of `make simulate-faults`: the whole product in one process, with faults."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN = 280.0


def simulate(
    folder: Path, *arguments: str, hash_seed: str = "0"
) -> subprocess.CompletedProcess[str]:
    """Run the command with results in `folder`."""
    command = [sys.executable, "-m", "loadtests", "simulate-faults", "--processes", "1"]
    return subprocess.run(
        [*command, "--out", str(folder), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=WITHIN,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},  # noqa: TID251 - of a child
    )


@pytest.mark.parametrize("first", [1000, 1200, 1400])
def test_a_fixed_set_of_seeds_has_no_findings(tmp_path: Path, first: int) -> None:
    """Each group of 200 seeds begins with a world that has booted in another way."""
    done = simulate(tmp_path, "--first", f"{first}", "--seeds", "8")

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_has_the_same_steps_alone_and_after_others(tmp_path: Path) -> None:
    """Also if the interpreters hash strings differently."""
    alone = simulate(tmp_path / "alone", "--first", "7", "--seeds", "1", "--verbose", hash_seed="1")
    after = simulate(tmp_path / "after", "--first", "5", "--seeds", "3", "--verbose", hash_seed="2")

    digests = [re.findall(r"^7 ([0-9a-f]{32})", run.stdout, re.MULTILINE) for run in (alone, after)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1


def test_the_simulation_notices_that_a_safeguard_is_gone(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--mutant", "the parameters in cache keys", "--seeds", "3")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong" in done.stdout or "other" in done.stdout
