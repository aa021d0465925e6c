"""Runs a drill: a sound system, a fault, and what fires and shows after how many seconds."""

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from loadtests.dashboards.check import bodies
from loadtests.drills.camera import take_pictures, viewer_key
from loadtests.drills.catalogue import OVERVIEW, Drill, file_of
from loadtests.drills.disk import mounted
from loadtests.drills.faults import ALGORITHM, Scene, add_tenants, items, write_algorithm
from loadtests.drills.panels import draw_panels, shown_by
from loadtests.drills.results import DrillResult, Seen
from loadtests.drills.traces import as_text, environment_of_sampling, find_traces
from loadtests.drills.traffic import Traffic
from loadtests.machine import this_machine
from testing.browser import CHROMIUM
from testing.model_repository import write_repository
from testing.otlp_sink import HttpSink
from testing.prometheus import Prometheus, running_prometheus, scrapes_of
from testing.system import TWO_REGIONS, System
from testing.waiting import wait_until
from tools.monitoring.files import RULES

_DISK = 2_400_000_000
_RATE, _ALGORITHM_RATE = 30.0, 5.0
_SAMPLED = 0.01
_AFTERWARDS = 20.0
"""Seconds until the last expected alert's panels have moved, too."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A sound system under load, what watches it, and the key of an operator who may look."""

    scene: Scene
    prometheus: Prometheus
    sink: HttpSink
    load: Traffic
    viewer: str
    began: float


@contextmanager
def running_stage(*, interval: str, quiet: float) -> Iterator[Stage]:
    """Start a system with its load and a Prometheus, and wait for `quiet` seconds."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, began = Path(name), time.time()
        disk = stack.enter_context(mounted(folder / "disk", size_bytes=_DISK))
        models = write_repository(folder / "models", real=True)
        write_algorithm(models)
        sink = HttpSink()
        stack.callback(sink.stop)
        environment = sink.environment | environment_of_sampling(_SAMPLED)
        system = stack.enter_context(
            System(
                folder / "disk/data",
                models=models,
                environment=environment,
                arguments=TWO_REGIONS,
            )
        )
        prometheus = stack.enter_context(
            running_prometheus(scrapes_of(system), interval=interval, rules=RULES)
        )
        load = Traffic(system.port, system.key, "/v1/classify", bodies("mood"), rate=_RATE)
        stack.enter_context(load)
        path, content = f"/v1/infer/{ALGORITHM}", items()
        stack.enter_context(Traffic(system.port, system.key, path, content, rate=_ALGORITHM_RATE))
        keys = add_tenants(system, stack)
        viewer = viewer_key(system)
        time.sleep(quiet)
        yield Stage(
            scene=Scene(system=system, models=models, disk=disk, keys=keys),
            prometheus=prometheus,
            sink=sink,
            load=load,
            viewer=viewer,
            began=began,
        )


def run_drill(
    drill: Drill, *, interval: str, quiet: float, limit: float, pictures: Path | None
) -> DrillResult:
    """Run a system for `quiet` seconds, then with the fault until all expected alerts fire.

    Alerts are recorded for at most `limit` seconds. `pictures` is the folder for those of steps.
    """
    with running_stage(interval=interval, quiet=quiet) as stage:
        before = _look(stage.prometheus, drill)
        stage.load.take()
        began, at = time.monotonic(), time.time()
        with drill.inject(stage.scene):
            fired = _watch(stage, drill, limit, pictures)
            time.sleep(_AFTERWARDS)
            after = _look(stage.prometheus, drill)
            traces = _traces(stage, drill, at)
            if pictures is not None:
                _draw(stage, drill, pictures, at)
            seconds = time.monotonic() - began
        machine = this_machine()
        return DrillResult(
            name=drill.name,
            fired=fired,
            expected=drill.alerts,
            statuses=stage.load.take(),
            seconds=seconds,
            seen=[Seen(panel=panel, before=before[panel], after=after[panel]) for panel in after],
            traces=traces,
            date=machine.date,
            commit=machine.commit,
            load=os.getloadavg()[1],
        )


def _watch(stage: Stage, drill: Drill, limit: float, pictures: Path | None) -> dict[str, float]:
    """Return after how many seconds each alert fired that did not before.

    The first of them has a picture of the console's overview taken.
    """
    known = set(stage.prometheus.firing())
    fired: dict[str, float] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:

        def done() -> bool:
            passed = time.monotonic() - began
            new = set(stage.prometheus.firing()) - known - set(fired)
            if new and not fired and pictures is not None and CHROMIUM.exists():
                view = {pictures / file_of(drill, 0): OVERVIEW}
                threads.submit(take_pictures, stage.scene.system, stage.viewer, view)
            fired.update(dict.fromkeys(sorted(new), round(passed, 1)))
            return passed > limit or set(drill.alerts) <= set(fired)

        wait_until(done, within=limit + 30, what="alerts", every=0.5)
    return fired


def _look(prometheus: Prometheus, drill: Drill) -> dict[str, str]:
    """Return what each panel of the drill shows, by its name."""
    return {f"{uid}: {title}": shown_by(prometheus, uid, title) for uid, title in drill.panels}


def _traces(stage: Stage, drill: Drill, since: float) -> dict[str, str]:
    """Return the worst trace of each kind that the steps open."""
    kinds = {step.trace for step in drill.steps if step.trace is not None}
    found = {kind: find_traces(stage.sink.spans, kind, since=since) for kind in kinds}
    return {kind: as_text(traces[0]) for kind, traces in sorted(found.items()) if traces}


def _draw(stage: Stage, drill: Drill, pictures: Path, fault: float) -> None:
    """Write the pictures of all steps after the first."""
    since = max(stage.began, fault - 60.0)
    numbered = list(enumerate(drill.steps, start=1))
    for number, step in numbered:
        if step.panels:
            path = pictures / file_of(drill, number, kind="svg")
            draw_panels(stage.prometheus, step.panels, path, fault=fault, since=since)
    if CHROMIUM.exists():
        views = {
            pictures / file_of(drill, number): step.view
            for number, step in numbered
            if step.view is not None
        }
        take_pictures(stage.scene.system, stage.viewer, views)
