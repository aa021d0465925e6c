"""Runs a system on this machine for a load test, on cores of its own and with limits."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import yaml

from loadtests.gateway import WIDE_LIMITS
from loadtests.measured import give_core
from testing.system import System
from testing.waiting import wait_until

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


def kill_processes(system: System, duration: float) -> list[tuple[str, str]]:
    """Kill processes during a load of `duration` seconds, and wait until others replace them.

    Return the seconds of the load at which something happened, and what happened.
    """
    began, marks = time.monotonic(), list[tuple[str, str]]()

    def mark(what: str) -> None:
        marks.append((f"{time.monotonic() - began:.1f}", what))
        click.echo(f"{marks[-1][0]} s: {what}")

    for share, role, region in _FAULTS:
        time.sleep(max(0.0, began + share * duration - time.monotonic()))
        victim = system.kill(role, region=region)
        mark(f"{role} killed")
        wait_until(partial(system.replaced, role, victim, region=region), what=f"another {role}")
        _pin(system)
        if region is not None:
            wait_until(partial(system.is_backend_ready, region), what=f"{role} is ready")
        mark(f"{role} is there again")
    return marks
