"""Injects six faults into a system that Prometheus scrapes, and records when each alert fires."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any  # fields of a fault

import msgspec

from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.judge import Window
from loadtests.faults.model import INFER, write_algorithm
from loadtests.faults.process_faults import kill, stop
from loadtests.faults.processes import TWO_BY_TWO, WITH_A_LIMIT, Processes, Setup
from loadtests.faults.topology import repeating

_LIMIT = 180.0
"""The most seconds of a fault. It ends earlier if all expected alerts fire."""
_SETUP = Setup(
    backends=TWO_BY_TWO[::2], workers=1, tenants=WITH_A_LIMIT, is_mixed=True, is_scraped=True
)
_ON_DISK = msgspec.structs.replace(_SETUP, disk_bytes=2_400_000_000)
_LOAD = LoadSpec(rate=30.0, hasty=0.0)


@contextmanager
def _slow_down(topology: Processes, part: str) -> Iterator[None]:
    """Let a backend run for only a tenth of the time."""
    (backend,) = topology.backends_of(part)
    turns = itertools.cycle(((backend.pause, 0.9), (backend.resume, 0.1)))

    def step() -> float:
        act, seconds = next(turns)
        act()
        return seconds

    with repeating(step):
        yield
    backend.resume()


@contextmanager
def _break_revision(topology: Processes, _: str) -> Iterator[None]:
    """Publish a revision of an algorithm that raises an error for every item."""

    def publish(number: int, line: str) -> None:
        for backend in topology.backends.values():
            write_algorithm(backend.models, revision=number, line=line)
        with topology.admin() as admin:
            admin.post("/admin/models/reload").raise_for_status()

    publish(2, 'raise ValueError("a fault")')
    yield
    publish(3, "pass")


@contextmanager
def _fill_disk(topology: Processes, _: str) -> Iterator[None]:
    topology.disk.fill()
    yield
    topology.disk.empty()


def _alerting(
    name: str, what: str, undo: str, act: Act | None, part: str, *alerts: str, **more: Any
) -> Fault:
    """Return a fault that ends once all `alerts` fire. One of them must fire."""

    @contextmanager
    def watched(topology: Processes, part: str) -> Iterator[None]:
        before = topology.prometheus.firing()
        topology.notes.update(before=before, fired={}, begun=time.monotonic())
        with act(topology, part) if act else nullcontext():
            yield

    def have_fired(topology: Processes) -> bool:
        fired: dict[str, float] = topology.notes["fired"]
        passed = round(time.monotonic() - topology.notes["begun"], 1)
        for alert in topology.prometheus.firing() - topology.notes["before"]:
            fired.setdefault(alert, passed)
        return set(alerts) <= set(fired)

    def one_fired(case: Case) -> Iterator[str]:
        fired = case.figures["fired"] = case.topology.notes["fired"]
        if not set(alerts) & set(fired):
            yield f"none of {', '.join(alerts)} fired"

    usual: dict[str, Any] = {"hold": _LIMIT, "load": _LOAD, "setup": _SETUP}
    return Fault(
        name,
        f"{what}; {', '.join(alerts)} should fire",
        undo,
        watched,
        (part,),
        until=have_fired,
        checks=(one_fired,),
        **(usual | more),
    )


FAULTS = (
    _alerting("slow-backend",
              "gives the backend of the preferred region a tenth of its processor time",
              "SIGCONT", _slow_down, "backend eu-0", "EndpointSlow", "LatencyBudgetBurnsFast",
              "EndpointFailsCalls", "WorkLeavesItsRegion"),
    _alerting("lost-region", "kills every backend of the preferred region",
              "the runner starts them again", kill, "region eu", "RegionLost"),
    _alerting("hot-tenant", "lets a tenant send several times what its limit allows",
              "the load is as before", None, "callers", "LimitRefusesMany",
              load=LoadSpec(rate=20.0, hasty=0.0, spike=4.0)),
    _alerting("broken-revision",
              "publishes a revision of one model that raises an error for every item",
              "a sound revision is published", _break_revision, "model", "RevisionFails",
              windows={"model": Window(is_open=True, after_end=10.0, path=INFER)}),
    _alerting("lost-redis", "stops both Redis: they answer nothing and keep their connections",
              "SIGCONT", stop, "cache and state", "CacheRedisDown", "StateRedisDown"),
    _alerting("full-disk", "fills the disk of the data directory to its last block",
              "the disk is emptied", _fill_disk, "disk", "DataDiskFull", "DataDiskNearlyFull",
              "EventLogNotWritable", windows={"disk": Window(is_open=True, after_end=10.0)},
              setup=_ON_DISK),
)  # fmt: skip
