"""Runs a system on this machine for a load test, on cores of its own and with limits."""

import contextlib
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import yaml

from loadtests.gateway import WIDE_LIMITS
from loadtests.machine import processor_seconds, resident_bytes
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


class Watcher:
    """Measures processes during a load, and kills processes of a local system.

    Without a system, it measures only the load generator.
    """

    def __init__(self, system: System | None, *, faults: bool, duration: float) -> None:
        self._system = system
        self._duration = duration
        due = _FAULTS if faults else ()
        self._due = [(share * duration, role, region) for share, role, region in due]
        self._away: list[tuple[str, str | None, int]] = []
        self._spent: dict[tuple[str, int], tuple[float, float]] = {}
        self._memory: list[Counter[str]] = []
        self.marks: list[tuple[str, str]] = []
        """Seconds of the load, and what happened then."""

    def advance(self, at: float, generator: int) -> None:
        """Measure, and kill the processes that are due at `at` seconds.

        `generator` is the process of k6.
        """
        processes = [("load generator", generator)]
        if self._system is not None:
            self._kill(self._system, at)
            processes += [(each.role, each.pid) for each in self._system.processes()]
        memory = Counter[str]()
        for role, pid in processes:
            with contextlib.suppress(OSError):  # the process has ended
                spent = processor_seconds(pid)
                first, _ = self._spent.get((role, pid), (spent, spent))
                self._spent[role, pid] = first, spent
                memory[role] += resident_bytes(pid)
        self._memory = [*self._memory[:1], memory]

    def use(self) -> list[tuple[str, str, str, str]]:
        """Return the cores that each role kept busy, and its MiB at the start and at the end."""
        cores = defaultdict[str, float](float)
        for (role, _), (first, last) in self._spent.items():
            cores[role] += (last - first) / self._duration
        before, after = self._memory[0], self._memory[-1]
        return [
            (role, f"{used:.2f}", f"{before[role] >> 20:,}", f"{after[role] >> 20:,}")
            for role, used in cores.items()
        ]

    def _kill(self, system: System, at: float) -> None:
        """Kill the processes that are due, and mark when other processes have replaced them."""
        while self._due and at >= self._due[0][0]:
            _, role, region = self._due.pop(0)
            self._away.append((role, region, system.kill(role, region=region)))
            self._mark(at, f"{role} killed")
        for role, region, victim in list(self._away):
            if system.replaced(role, victim, region=region):
                _pin(system)
                if region is None or system.is_backend_ready(region):
                    self._away.remove((role, region, victim))
                    self._mark(at, f"{role} is there again")

    def _mark(self, at: float, what: str) -> None:
        self.marks.append((f"{at:.1f}", what))
        click.echo(f"{at:.1f} s: {what}")
