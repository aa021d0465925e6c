"""Defines the faults of drills: how each is injected into a running system, and undone."""

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec

from loadtests.dashboards.check import bodies
from loadtests.drills.disk import Disk
from loadtests.drills.traffic import Traffic
from loadtests.harness.model_repository import write_model
from loadtests.harness.system import System

ALGORITHM = "judge"
"""The model that a broken revision breaks."""
_STOPPED, _RUNNING = 0.9, 0.1
_HOT_RATE = 60.0
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


Inject = Callable[[Scene], AbstractContextManager[None]]


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, the alerts that should name it, and the panels that an operator looks at."""

    name: str
    what: str
    inject: Inject
    alerts: tuple[str, ...]
    panels: tuple[tuple[str, str], ...]
    """Dashboard and title of each."""
    cause: str
    """What the operator names in the end."""


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
    limits = [{"name": "minute", "unit": "requests", "capacity": 300, "window": 60.0}]
    with scene.system.admin() as admin:
        made = admin.post("/admin/tenants", json={"id": "hot", "limits": limits})
        key = admin.post("/admin/keys", json={"tenant": "hot", "name": "hot"})
        made.raise_for_status()
        text = key.raise_for_status().json()["key"]
    port, content = scene.system.port, bodies("mood")
    with Traffic(port, text, "/v1/classify", content, rate=_HOT_RATE):
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


DRILLS = (
    Drill(
        name="slow backend",
        what="the backend of the preferred region gets a tenth of its processor time",
        inject=slow_backend,
        alerts=(
            "EndpointSlow",
            "LatencyBudgetBurnsFast",
            "EndpointFailsCalls",
            "WorkLeavesItsRegion",
        ),
        panels=(
            ("incident", "99th percentile by model"),
            ("incident", "Predicted finish"),
            ("region", "Share of its work that it is given"),
            ("region", "Hedges, retries and items that went to another region"),
            ("region", "Failures by cause"),
        ),
        cause="one backend's predicted finish is far above the other's, which works as before",
    ),
    Drill(
        name="lost region",
        what="every backend of the preferred region is killed whenever it starts",
        inject=lost_region,
        alerts=("RegionLost",),
        panels=(
            ("incident", "Share of backends ready, by region"),
            ("incident", "Requests that failed, by model and outcome"),
            ("incident", "Items that went to another region"),
            ("region", "Failures by cause"),
        ),
        cause="no backend of `eu` is ready, and its items go to `us`",
    ),
    Drill(
        name="hot tenant",
        what="a tenant with 300 requests a minute sends 3,600",
        inject=hot_tenant,
        alerts=("LimitRefusesMany",),
        panels=(
            ("incident", "Refused by limits"),
            ("money", "Decisions of limits"),
            ("overview", "Requests by outcome"),
        ),
        cause="one limit refuses; `GET /admin/usage?group_by=tenant` names `hot`",
    ),
    Drill(
        name="broken revision",
        what="a new revision of one model raises an error for every item",
        inject=broken_revision,
        alerts=("RevisionFails",),
        panels=(
            ("incident", "Requests that failed, by model and outcome"),
            ("incident", "Failed items by revision"),
            ("model", "Items by revision"),
            ("model", "Share of requests that failed"),
        ),
        cause="one model fails, and only its new revision",
    ),
    Drill(
        name="full disk",
        what="the disk of the data directory is filled to its last block",
        inject=full_disk,
        alerts=("DataDiskNearlyFull", "EventLogNotWritable"),
        panels=(
            ("incident", "Free space of data directories"),
            ("incident", "Requests that failed, by model and outcome"),
            ("money", "Bytes that are not shipped"),
        ),
        cause="no space is left: the state Redis cannot write either, and requests fail with"
        " `event_log_unavailable` once the room that event logs reserve is used",
    ),
    Drill(
        name="lost Redis",
        what="both Redis are stopped: they answer nothing and keep their connections",
        inject=lost_redis,
        alerts=("CacheRedisDown", "StateRedisDown"),
        panels=(
            ("incident", "Reached"),
            ("incident", "Limits decided without Redis"),
            ("incident", "Lag of events"),
            ("cache", "Look-ups that failed"),
            ("incident", "99th percentile by model"),
        ),
        cause="`cache_redis` and `state_redis` are at 0, everything else follows from that",
    ),
)
