"""`make` installs with the Python that it is given, also where there is an environment already."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.settings import process_environment

ROOT = Path(__file__).parents[3]


def write_python(path: Path, identity: str) -> Path:
    """Write what stands for an interpreter: it says who it is, and does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{identity}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose environment is complete, of the interpreter `one`."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    for name in ("demo", "dev"):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        (tmp_path / f"requirements/{name}.txt").touch()
    write_python(tmp_path / ".venv/bin/python", "one")
    for stamp in (".installed", ".installed-dev"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def make(clone: Path, *arguments: str) -> str:
    """Return what `make` would do."""
    own = {name: value for name, value in process_environment().items() if name != "PYTHON"}
    done = subprocess.run(
        [shutil.which("make") or "make", "--dry-run", *arguments],
        cwd=clone,
        env={name: value for name, value in own.items() if not name.startswith("MAKE")},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize("target", ["install", "install-dev"])
def test_another_python_makes_the_environment_anew(clone: Path, target: str) -> None:
    other = write_python(clone / "other", "two")

    would = make(clone, target, f"PYTHON={other}")

    assert f"{other} -m venv --clear .venv" in would
    assert "has another Python than" in would
    assert would.count("--require-hashes") > 1


@pytest.mark.parametrize("target", ["install", "install-dev"])
def test_the_same_python_or_none_installs_nothing(clone: Path, target: str) -> None:
    same = write_python(clone / "same", "one")

    assert "Nothing to be done" in make(clone, target, f"PYTHON={same}")
    assert "Nothing to be done" in make(clone, target)
