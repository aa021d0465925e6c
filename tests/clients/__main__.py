"""Runs real clients against a running system: `python -m tests.clients [NAME ...]`.

Each folder here is a client: `requirements.txt`, and a `program.py` that runs in an environment
with these packages (`make` makes it), calls the system and prints what it found.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import click

from sluicegate.backends.model_tools.demo.build import build_demo_models
from testing.ports import free_port
from testing.system import TWO_REGIONS, System
from tests.clients.matrix import clients, run_client, target_of
from tests.clients.slow_region import slow_region
from tests.parity.library_answers import answers_file
from tests.parity.library_fixtures import OUTPUTS, unpack
from tests.parity.library_served import import_folder

_ROOT = Path(__file__).parents[2]
# One of the checkpoints with outputs of all kinds, and the answers that are recorded for it.
_VECTORS_MODEL = "joined-xlm-roberta"


def main(names: list[str]) -> int:
    """Run the clients, print a line for each check, and return 1 where one failed."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        build_demo_models(models, print)
        source = unpack(_VECTORS_MODEL, Path(folder, "sources"), fixtures=OUTPUTS)
        refused = import_folder(source, models)
        assert refused is None, refused
        config = Path(shutil.copytree(_ROOT / "config", Path(folder, "config")))
        with (
            System(
                Path(folder, "data"),
                models=models,
                config=config,
                environment={
                    "SLUICEGATE_BATCHES": "true",
                    "SLUICEGATE_GRPC_PORT": str(free_port()),
                },
                arguments=TWO_REGIONS,
            ) as system,
            slow_region(system, config),
        ):
            target = target_of(system) | {
                "vectors_model": source.name,
                "vectors_answers": str(answers_file(source)),
            }
            for name in names:
                python = _ROOT / ".venv-clients" / name / "bin" / "python"
                for line in run_client(name, python, system, target):
                    click.echo(line.text())
                    failures += bool(line.wrong)
    click.echo(f"\n{failures} checks failed" if failures else "\nall checks passed")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or clients()))
