"""Runs a system on this machine for a load test, on cores of its own and with limits."""

import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
import yaml

from backends.model_tools.demo.build import build_demo_models
from loadtests.gateway import WIDE_LIMITS
from loadtests.machine import busy_seconds, resident_bytes
from loadtests.measured import give_core
from testing.system import System

GENERATOR = "load generator"
_CONFIG = Path(__file__).parents[2] / "config"
_PACED = {
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_PACED_BASE": "0.006",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "0.0004",
}
_FAULTS = ((0.25, "backend", "eu"), (0.5, "valkey-cache", None), (0.75, "valkey-state", None))
"""What to kill: the share of the load before the kill, the role of the process, and its region."""
_EVERY = 1.0


class LocalSystem(msgspec.Struct, frozen=True):
    """A running system, and the keys of its tenants."""

    system: System
    keys: tuple[str, ...]
    is_pinned: bool

    @property
    def generator_core(self) -> int | None:
        """The generator's core. On a machine with three or more cores, nothing else runs on it."""
        return (2 if (os.cpu_count() or 1) > 2 else 0) if self.is_pinned else None

    def pin(self) -> None:
        """Pin the backends to one core, and all other processes to another."""
        # A process that was killed may still be listed.
        with contextlib.suppress(OSError):
            if self.is_pinned:
                give_core(self.system, "backend", 1, others=0)


@contextlib.contextmanager
def local_system(
    folder: Path,
    *,
    tenants: int,
    regions: Sequence[str],
    models: Path | None = None,
    is_pinned: bool = True,
    is_paced: bool = False,
) -> Iterator[LocalSystem]:
    """Run `sluicegate up`, create `tenants` tenants, and yield the system.

    It serves the models in the folder `models`, or the demo models if `models` is `None`. If
    `is_paced`, the device of its backends computes nothing: a batch takes a set time, but no
    processor time.
    """
    if models is None:
        models = folder / "models"
        build_demo_models(models, lambda _: None)
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
            for number in range(tenants):
                tenant = {"id": f"load-{number}"}
                admin.post("/admin/tenants", json=tenant).raise_for_status()
                made = admin.post("/admin/keys", json={"tenant": tenant["id"]}).raise_for_status()
                keys.append(made.json()["key"])
        local = LocalSystem(system, tuple(keys), is_pinned)
        local.pin()
        yield local


class UseSample(msgspec.Struct, frozen=True, kw_only=True):
    """What each role has used: processor seconds since its start, and MiB of memory now."""

    at: float
    processor: dict[str, float]
    memory: dict[str, float]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a run that the report marks."""

    at: float
    what: str


class Watcher:
    """Samples processes once a second during a load, and kills processes of a local system."""

    def __init__(self, local: LocalSystem | None, *, faults: bool, duration: float) -> None:
        self._local = local
        due = _FAULTS if faults and local else ()
        self._due = [(share * duration, role, region) for share, role, region in due]
        self._away: list[tuple[str, str | None, int]] = []
        self._spent: dict[tuple[str, int], float] = {}
        self.samples: list[UseSample] = []
        self.marks: list[Mark] = []

    def advance(self, at: float, generator: int) -> None:
        """Take the samples and kill the processes that are due at `at` seconds.

        `generator` is the process of k6.
        """
        if self._local is not None:
            self._kill(self._local, at)
        if self.samples and at - self.samples[-1].at < _EVERY:
            return
        listed = self._local.system.processes() if self._local else ()
        memory = defaultdict[str, float](float)
        for role, pid in ((GENERATOR, generator), *((each.role, each.pid) for each in listed)):
            # The sums keep the processor time of processes that have ended.
            with contextlib.suppress(OSError):
                self._spent[role, pid] = busy_seconds(pid)
                memory[role] += resident_bytes(pid) / 2**20
        processor = defaultdict[str, float](float)
        for (role, _), seconds in self._spent.items():
            processor[role] += seconds
        self.samples.append(UseSample(at=at, processor=processor, memory=memory))

    def _kill(self, local: LocalSystem, at: float) -> None:
        """Kill the processes that are due, and mark when other processes have replaced them."""
        while self._due and at >= self._due[0][0]:
            _, role, region = self._due.pop(0)
            self._away.append((role, region, local.system.kill(role, region=region)))
            self._mark(at, f"{role} killed")
        for role, region, victim in list(self._away):
            if local.system.replaced(role, victim, region=region):
                local.pin()
                if region is None or local.system.is_backend_ready(region):
                    self._away.remove((role, region, victim))
                    self._mark(at, f"{role} is there again")

    def _mark(self, at: float, what: str) -> None:
        self.marks.append(Mark(at=round(at, 2), what=what))
        click.echo(f"{at:.1f} s: {what}")


def cores_used(samples: Sequence[UseSample], begin: float, end: float) -> dict[str, float]:
    """Return the average cores that each role kept busy between two times."""
    inside = [one for one in samples if begin <= one.at <= end]
    if len(inside) < 2:
        return {}
    first, last = inside[0], inside[-1]
    return {
        role: max(0.0, used - first.processor.get(role, 0.0)) / (last.at - first.at)
        for role, used in last.processor.items()
    }
