"""CI fails where a test or a check does, and shows what the checks said."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.gateway.settings import process_environment

ROOT = Path(__file__).parents[3]


def run_ci(
    folder: Path, *, tests: int, again: int, checks: int
) -> subprocess.CompletedProcess[str]:
    """Run CI where the tools end with these statuses."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci")
    (folder / "Makefile").write_text(
        "install-system install-dev:\n"
        f"checks:\n\t@echo checked; exit {checks}\n"
        f"tests:\n\t@sh -c 'exit $(if $(TEST_PROCESSES),{again},{tests})' $(PYTEST_ARGS)\n"
    )
    cache = folder / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text('{"tests/test_a.py::test_b": true}')
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    return subprocess.run(
        [shutil.which("bash") or "bash", folder / ".ci/run"],
        capture_output=True,
        check=False,
        env={"PATH": process_environment()["PATH"]},  # none of the variables of an outer run
        text=True,
    )


@pytest.mark.parametrize(
    ("tests", "again", "checks", "passes"),
    [
        (0, 0, 0, True),
        (1, 0, 0, True),
        (1, 1, 0, False),
        (0, 0, 1, False),
        (1, 0, 1, False),
        # Tests that did not run must not pass because those that failed before pass alone.
        (2, 0, 0, False),
        (3, 0, 0, False),
        (137, 0, 0, False),
    ],
)
def test_ci_passes_only_where_every_test_and_check_does(
    tmp_path: Path, *, tests: int, again: int, checks: int, passes: bool
) -> None:
    done = run_ci(tmp_path, tests=tests, again=again, checks=checks)

    assert (done.returncode == 0) == passes
    assert "checked" in done.stdout
    assert ("unsteady" in done.stdout) == (passes and tests == 1)
