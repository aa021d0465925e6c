"""Defines the faults of drills: how each is injected into a running system, and undone."""

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from loadtests.dashboards.check import bodies
from loadtests.drills.disk import Disk
from loadtests.drills.traffic import Traffic
from testing.model_repository import write_model
from testing.system import System

ALGORITHM = "judge"
"""The model that a broken revision breaks."""
_STOPPED, _RUNNING = 0.9, 0.1
_HOT_RATE = 60.0
_SMALL_TENANTS = ("acme", "birch", "cedar")
_HOT = "birch"
_CODE = """
async def run(item, ask):
    {line}
    return {{"length": len(str(item))}}
"""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """The running system, its models and its disk."""

    system: System
    models: Path
    disk: Disk
    keys: Mapping[str, str]
    """The keys of the small tenants."""


@contextmanager
def repeating(action: Callable[[], float]) -> Iterator[None]:
    """Call `action` from a thread; it returns how long to wait until the next call."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(action()):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def slow_backend(scene: Scene) -> Iterator[None]:
    """Let the backend of the preferred region run for a tenth of the time."""
    numbers = [signal.SIGCONT, signal.SIGSTOP]

    def step() -> float:
        numbers.reverse()
        _signal(scene, "backend", numbers[0], region="eu")
        return _STOPPED if numbers[0] is signal.SIGSTOP else _RUNNING

    with repeating(step):
        yield
    _signal(scene, "backend", signal.SIGCONT, region="eu")


@contextmanager
def lost_region(scene: Scene) -> Iterator[None]:
    """Kill each backend of the preferred region whenever it starts."""

    def step() -> float:
        _signal(scene, "backend", signal.SIGKILL, region="eu")
        return 0.2

    with repeating(step):
        yield


@contextmanager
def lost_redis(scene: Scene) -> Iterator[None]:
    """Stop both Redis, which then answer nothing and keep their connections."""

    def step() -> float:
        for role in ("valkey-cache", "valkey-state"):
            _signal(scene, role, signal.SIGSTOP)
        return 0.2

    with repeating(step):
        yield
    for role in ("valkey-cache", "valkey-state"):
        _signal(scene, role, signal.SIGCONT)


@contextmanager
def hot_tenant(scene: Scene) -> Iterator[None]:
    """Let a tenant with 300 requests a minute send twelve times as many."""
    port, content = scene.system.port, bodies("mood")
    with Traffic(port, scene.keys[_HOT], "/v1/classify", content, rate=_HOT_RATE):
        yield


@contextmanager
def broken_revision(scene: Scene) -> Iterator[None]:
    """Publish a revision of a model whose code raises an error for every item."""
    write_algorithm(scene.models, revision=2, line='raise ValueError("a fault of the revision")')
    with scene.system.admin() as admin:
        admin.post("/admin/models/reload").raise_for_status()
    yield


@contextmanager
def full_disk(scene: Scene) -> Iterator[None]:
    """Fill the disk of the data directory to its last block."""
    scene.disk.fill()
    yield
    scene.disk.empty()


def add_tenants(system: System, stack: ExitStack) -> dict[str, str]:
    """Create small tenants, which send a request a second each until `stack` ends; their keys."""
    limits = [{"name": "minute", "unit": "requests", "capacity": 300, "window": 60.0}]
    keys: dict[str, str] = {}
    with system.admin() as admin:
        for tenant in _SMALL_TENANTS:
            made = admin.post("/admin/tenants", json={"id": tenant, "limits": limits})
            made.raise_for_status()
            made = admin.post("/admin/keys", json={"tenant": tenant, "name": tenant})
            keys[tenant] = made.raise_for_status().json()["key"]
    for key in keys.values():
        content = bodies("mood")
        stack.enter_context(Traffic(system.port, key, "/v1/classify", content, rate=1.0))
    return keys


def items() -> Iterator[bytes]:
    """Yield bodies of one item each for the algorithm, none twice."""
    for number in itertools.count():
        yield msgspec.json.encode({"inputs": [f"item {number}"]})


def write_algorithm(models: Path, *, revision: int = 1, line: str = "pass") -> None:
    """Write a revision of the algorithm."""
    manifest = {
        "kind": "algorithm",
        "algorithm": "custom",
        "code": "own.py",
        "uses": ["mood"],
        "tasks": ["infer"],
    }
    folder = write_model(models, ALGORITHM, manifest, revision)
    (folder / "own.py").write_text(_CODE.format(line=line))


def _signal(scene: Scene, role: str, number: signal.Signals, *, region: str | None = None) -> None:
    for process in scene.system.processes(role):
        if region in (None, process.region):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
