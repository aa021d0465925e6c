"""Injects six faults into a scraped system, and asks Prometheus which alerts fire, and when."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import Window
from loadtests.faults.mixed import MixedOracle, write_algorithm
from loadtests.faults.paced_backend import BackendSpec
from loadtests.faults.processes import Processes, Setup, repeating

_LIMIT = 180.0
"""Seconds of a fault at most; it ends when all expected alerts fire."""
_OPEN = Window(is_open=True, after_end=10.0)
_BACKENDS = (BackendSpec(name="eu-0", region="eu"), BackendSpec(name="us-0", region="us"))
_SETUP = Setup(backends=_BACKENDS, workers=1, limited=1, oracle=MixedOracle, scrape_interval="15s")


@contextmanager
def _watched(topology: Processes, _: str = "") -> Iterator[None]:
    """Do nothing, and note which alerts fire."""
    topology.notes["before"] = set(topology.prometheus.firing())
    topology.notes["fired"] = {}
    topology.notes["begun"] = time.monotonic()
    yield


@contextmanager
def _slow_down(topology: Processes, part: str) -> Iterator[None]:
    """Let a backend run for a tenth of the time."""
    backend = topology.backends[part.split()[1]]
    turns = itertools.cycle(((backend.pause, 0.9), (backend.resume, 0.1)))

    def step() -> float:
        act, seconds = next(turns)
        act()
        return seconds

    with _watched(topology), repeating(step):
        yield
    backend.resume()


@contextmanager
def _lose_region(topology: Processes, part: str) -> Iterator[None]:
    with _watched(topology), topology.inject("kill", part):
        yield


@contextmanager
def _lose_redis(topology: Processes, _: str) -> Iterator[None]:
    stop = topology.inject
    with _watched(topology), stop("stop", "cache"), stop("stop", "state"):
        yield


@contextmanager
def _break_revision(topology: Processes, _: str) -> Iterator[None]:
    """Publish a revision of an algorithm that raises an error for every item."""
    with _watched(topology):
        for backend in topology.backends.values():
            write_algorithm(backend.models, revision=2, line='raise ValueError("a fault")')
        _reload(topology)
        yield
        for backend in topology.backends.values():
            write_algorithm(backend.models, revision=3)
        _reload(topology)


@contextmanager
def _fill_disk(topology: Processes, _: str) -> Iterator[None]:
    with _watched(topology):
        topology.disk.fill()
        yield
        topology.disk.empty()


def _reload(topology: Processes) -> None:
    with topology.admin() as admin:
        admin.post("/admin/models/reload").raise_for_status()


def _until(alerts: tuple[str, ...]) -> Callable[[Processes], bool]:
    def have_fired(topology: Processes) -> bool:
        fired: dict[str, float] = topology.notes["fired"]
        passed = round(time.monotonic() - topology.notes["begun"], 1)
        for name in topology.prometheus.firing():
            if name not in topology.notes["before"]:
                fired.setdefault(name, passed)
        return set(alerts) <= set(fired)

    return have_fired


def _fired(alerts: tuple[str, ...]) -> Callable[[Case], Sequence[str]]:
    """Return a check that finds a fault for which no expected alert fired."""

    def check(case: Case) -> Sequence[str]:
        fired = case.figures["fired"] = case.topology.notes["fired"]
        return [] if set(alerts) & set(fired) else [f"none of {', '.join(alerts)} fired"]

    return check


def _alerting(
    name: str,
    what: str,
    undo: str,
    act: Callable[[Processes, str], object],
    *alerts: str,
    **further: object,
) -> Fault:
    return Fault(
        name=name,
        what=f"{what}; {', '.join(alerts)} should fire",
        undo=undo,
        hold=_LIMIT,
        act=act,  # type: ignore[arg-type]
        until=_until(alerts),
        checks=(_fired(alerts),),
        **({"setup": _SETUP, "load": LoadSpec(rate=30.0, hasty=0.0)} | further),  # type: ignore[arg-type]
    )


FAULTS = (
    _alerting(
        "slow-backend",
        "gives the backend of the preferred region a tenth of its processor time",
        "SIGCONT",
        _slow_down,
        *("EndpointSlow", "LatencyBudgetBurnsFast", "EndpointFailsCalls", "WorkLeavesItsRegion"),
        parts=("backend eu-0",),
    ),
    _alerting(
        "lost-region",
        "kills every backend of the preferred region",
        "the runner starts them again",
        _lose_region,
        "RegionLost",
        parts=("region eu",),
    ),
    _alerting(
        "hot-tenant",
        "lets a tenant send several times what its limit allows",
        "the load is as before",
        _watched,
        "LimitRefusesMany",
        parts=("callers",),
        load=LoadSpec(rate=20.0, hasty=0.0, spike=4.0),
    ),
    _alerting(
        "broken-revision",
        "publishes a revision of one model that raises an error for every item",
        "a sound revision is published",
        _break_revision,
        "RevisionFails",
        parts=("model",),
        windows={"model": _OPEN},
    ),
    _alerting(
        "lost-redis",
        "stops both Redis: they answer nothing and keep their connections",
        "SIGCONT",
        _lose_redis,
        *("CacheRedisDown", "StateRedisDown"),
        parts=("cache and state",),
    ),
    _alerting(
        "full-disk",
        "fills the disk of the data directory to its last block",
        "the disk is emptied",
        _fill_disk,
        *("DataDiskFull", "DataDiskNearlyFull", "EventLogNotWritable"),
        parts=("disk",),
        windows={"disk": _OPEN},
        setup=msgspec.structs.replace(_SETUP, disk_bytes=2_400_000_000),
    ),
)
