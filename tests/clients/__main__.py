"""Runs real clients against a running system: `python -m tests.clients [NAME ...]`.

Each folder here is a client: `requirements.txt`, and a `program.py` that runs in an environment
with these packages (`make` makes it), calls the system and prints what it found.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests.harness.system import System

FOLDER = Path(__file__).parent
_ROOT = FOLDER.parents[1]
_WIDEST = 40


def clients() -> list[str]:
    """Return the names of all clients."""
    return sorted(path.parent.name for path in FOLDER.glob("*/program.py"))


def target_of(system: System) -> dict[str, str]:
    """Return what programs are told of a running system, with keys made for them."""
    rule = {"name": "burst", "unit": "requests", "capacity": 1, "window": 2.0}
    with system.admin() as admin:

        def made(**fields: object) -> str:
            answer = admin.post("/admin/keys", json={"tenant": "demo", **fields})
            return str(answer.raise_for_status().json()["key"])

        return {
            "url": system.url,
            "key": system.key,
            "limited_key": made(limits=[rule]),
            "narrow_key": made(models=["sentiment"]),
        }


def run_client(name: str, python: Path, target: dict[str, str]) -> dict[str, str]:
    """Return what the program of a client found: by check what went wrong, empty if nothing."""
    done = subprocess.run(
        [python, FOLDER / name / "program.py", json.dumps(target)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},  # noqa: TID251 - for another program
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        return {"it ends": done.stderr[-2000:]}
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main(names: list[str]) -> int:
    """Run the clients, print a line for each check, and return 1 where one failed."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        build_demo_models(models, print)
        with System(
            Path(folder, "data"), models=models, environment={"SLUICEGATE_BATCHES": "true"}
        ) as system:
            target = target_of(system)
            for name in names:
                python = _ROOT / ".venv-clients" / name / "bin" / "python"
                for check, wrong in run_client(name, python, target).items():
                    click.echo(f"{name:12} {check:{_WIDEST}} {'FAILED' if wrong else 'ok'}")
                    click.echo(wrong, nl=False)
                    failures += bool(wrong)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or clients()))
