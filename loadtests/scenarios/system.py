"""Runs a system on this machine for a load test, on cores of its own and with limits."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import yaml

from loadtests.gateway import WIDE_LIMITS
from loadtests.measured import give_core
from testing.system import System

_CONFIG = Path(__file__).parents[2] / "config"
_PACED = {
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_PACED_BASE": "0.006",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "0.0004",
}
_FAULTS = ((0.25, "backend", "eu"), (0.5, "valkey-cache", None), (0.75, "valkey-state", None))
"""What to kill: the share of the load before the kill, the role of the process, and its region."""
_TENANTS = 3


def generator_core() -> int:
    """Return the generator's core: with three or more cores, one on which nothing else runs."""
    return 2 if (os.cpu_count() or 1) > 2 else 0


@contextlib.contextmanager
def local_system(
    folder: Path, models: Path, *, regions: Sequence[str], is_paced: bool
) -> Iterator[tuple[System, tuple[str, ...]]]:
    """Run `sluicegate up`, create tenants, and yield the system and a key of each tenant.

    If `is_paced`, the device of its backends computes nothing: a batch takes a set time, but no
    processor time.
    """
    config = Path(shutil.copytree(_CONFIG, folder / "config"))
    document = yaml.safe_load((config / "gateway.yaml").read_text())
    document["limits"].update(WIDE_LIMITS)
    (config / "gateway.yaml").write_text(yaml.safe_dump(document))
    with System(
        folder / "data",
        models=models,
        config=config,
        environment={"SLUICEGATE_BACKEND_THREADS": "1"} | (_PACED if is_paced else {}),
        arguments=("--regions", ",".join(regions)),
    ) as system:
        keys = []
        with system.admin() as admin:
            for number in range(_TENANTS):
                tenant = {"id": f"load-{number}"}
                admin.post("/admin/tenants", json=tenant).raise_for_status()
                made = admin.post("/admin/keys", json={"tenant": tenant["id"]}).raise_for_status()
                keys.append(made.json()["key"])
        _pin(system)
        yield system, tuple(keys)


def _pin(system: System) -> None:
    """Pin the backends to one core, and all other processes to another."""
    with contextlib.suppress(OSError):  # a process that was killed may still be listed
        give_core(system, "backend", 1, others=0)


class Faults:
    """Kills the processes of a system that are due during a load, and notes when they are back."""

    def __init__(self, system: System, duration: float) -> None:
        self._system = system
        self._due = [(share * duration, role, region) for share, role, region in _FAULTS]
        self._away: list[tuple[str, str | None, int]] = []
        self.marks: list[tuple[str, str]] = []
        """Seconds of the load, and what happened then."""

    def advance(self, at: float) -> None:
        """Kill what is due at `at` seconds, and pin the processes that have replaced others."""
        while self._due and at >= self._due[0][0]:
            _, role, region = self._due.pop(0)
            self._away.append((role, region, self._system.kill(role, region=region)))
            self._mark(at, f"{role} killed")
        for role, region, victim in list(self._away):
            if self._system.replaced(role, victim, region=region):
                _pin(self._system)
                if region is None or self._system.is_backend_ready(region):
                    self._away.remove((role, region, victim))
                    self._mark(at, f"{role} is there again")

    def _mark(self, at: float, what: str) -> None:
        self.marks.append((f"{at:.1f}", what))
        click.echo(f"{at:.1f} s: {what}")
