"""Starts a system on this machine for a run: pinned to cores, with limits that refuse nothing."""

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import yaml

from backends.model_tools.demo.build import build_demo_models
from loadtests.machine import pin
from testing.system import System

_CONFIG = Path(__file__).parents[2] / "config"
_LIMIT = {"name": "load", "unit": "requests", "capacity": 1_000_000_000, "window": 60.0}
"""Limits are in force, and refuse nothing."""


_PACED = {
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_PACED_BASE": "0.006",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "0.0004",
}


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Which cores backends, the rest of a system and the generator are kept on; none is any."""

    backend: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    generator: tuple[int, ...] = ()


ANY_CORES = Cores()


def divide_cores(count: int) -> Cores:
    """Return who has which of `count` cores: the generator one of its own where there are three."""
    return Cores(backend=(1 % count,), rest=(0,), generator=(2 if count > 2 else 0,))


class LocalSystem:
    """A running system, and the keys of its tenants."""

    def __init__(self, system: System, keys: tuple[str, ...], cores: Cores) -> None:
        self.system = system
        self.keys = keys
        self.cores = cores

    def processes(self) -> dict[str, list[int]]:
        """Return the ids of its processes by role."""
        found = defaultdict(list)
        for process in self.system.processes():
            found[process.role].append(process.pid)
        return dict(found)

    def kill(self, role: str, region: str | None) -> int:
        """Kill a process; return its id."""
        return self.system.kill(role, region=region)

    def is_back(self, role: str, region: str | None, victim: int) -> bool:
        """Tell whether another process has taken the place; a backend must be ready, too."""
        if not self.system.replaced(role, victim, region=region):
            return False
        self.pin()
        return region is None or self.system.is_backend_ready(region)

    def pin(self) -> None:
        """Keep each process on its core; those that start later are on that of their parent."""
        for role, pids in self.processes().items():
            for core in self.cores.backend if role == "backend" else self.cores.rest:
                for pid in pids:
                    # One that was killed may be listed still.
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        pin([pid], core)


@contextlib.contextmanager
def local_system(
    folder: Path,
    *,
    tenants: int,
    regions: Sequence[str],
    models: Path | None = None,
    cores: Cores,
    is_paced: bool = False,
) -> Iterator[LocalSystem]:
    """Run `sluicegate up` with a region for each name, and as many tenants as are wanted.

    Without `models` it serves the demo models. A paced backend has a device that takes time but no
    core, so that others on the machine change little.
    """
    if models is None:
        models = folder / "models"
        build_demo_models(models, lambda _: None)
    config = Path(shutil.copytree(_CONFIG, folder / "config"))
    _write_limits(config / "gateway.yaml")
    system = System(
        folder / "data",
        models=models,
        config=config,
        environment={"SLUICEGATE_BACKEND_THREADS": "1"} | (_PACED if is_paced else {}),
        arguments=("--regions", ",".join(regions)),
    )
    with system:
        local = LocalSystem(system, tuple(_keys(system, tenants)), cores)
        local.pin()
        yield local


def _write_limits(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    document["limits"]["tenant"] = [_LIMIT]
    path.write_text(yaml.safe_dump(document))


def _keys(system: System, tenants: int) -> Iterator[str]:
    with system.admin() as admin:
        for number in range(tenants):
            tenant = {"id": f"load-{number}"}
            admin.post("/admin/tenants", json=tenant).raise_for_status()
            made = admin.post("/admin/keys", json={"tenant": tenant["id"]}).raise_for_status()
            yield made.json()["key"]
