"""`make` installs with the Python that it is given, and for the GPUs that it finds."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sluicegate.gateway.settings import process_environment
from tests.support.gpu_library import FakeDriver, FakeGpu

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
    (tmp_path / "wire").mkdir()
    for name in ("__init__.py", "gpus.py"):
        shutil.copy(ROOT / "wire" / name, tmp_path / "wire")
    for name in ("demo", "demo-gpu", "dev", "pip"):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        (tmp_path / f"requirements/{name}.txt").touch()
    write_python(tmp_path / ".venv/bin/python", "one")
    for stamp in (".installed", ".installed-dev"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def make(clone: Path, *arguments: str, **environment: str) -> str:
    """Return what `make` would do."""
    inherited = dict(process_environment()) | environment
    own = {name: value for name, value in inherited.items() if name != "PYTHON"}
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


def test_a_run_is_on_the_cpu_where_there_is_no_gpu(clone: Path, tmp_path: Path) -> None:
    assert make(clone, "run") == "exec .venv/bin/sluicegate up \n"
    assert make(clone, "run", **FakeDriver(tmp_path).environment) == make(clone, "run")


def test_a_run_on_a_gpu_has_an_environment_of_its_own(clone: Path, tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.show([FakeGpu("GPU-1")])

    would = make(clone, "run", "ARGS=--port 9090", **driver.environment)

    assert "venv .venv-gpu\n" in would
    assert "--require-hashes -r requirements/demo-gpu.txt\n" in would
    assert would.endswith("exec .venv-gpu/bin/sluicegate up --port 9090\n")


def test_a_run_on_a_gpu_installs_once(clone: Path, tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.show([FakeGpu("GPU-1")])
    (clone / ".venv-gpu").mkdir()
    (clone / ".venv-gpu/.installed").touch()

    assert make(clone, "run", **driver.environment) == "exec .venv-gpu/bin/sluicegate up \n"


def test_no_other_target_looks_for_gpus(clone: Path, tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.show([FakeGpu("GPU-1")])

    assert ".venv-gpu" not in make(clone, "tests", **driver.environment)
