"""Runs a drill: a sound system, a fault, and what fires and shows after how many seconds."""

import re
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from loadtests.dashboards.check import bodies
from loadtests.dashboards.queries import filled_in
from loadtests.drills.disk import mounted
from loadtests.drills.faults import ALGORITHM, Drill, Scene, items, write_algorithm
from loadtests.drills.traffic import Traffic
from loadtests.harness.model_repository import write_repository
from loadtests.harness.prometheus import Prometheus, running_prometheus, scrapes_of
from loadtests.harness.system import System
from loadtests.harness.waiting import wait_until
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.files import RULES

_DISK = 2_400_000_000
_RATE, _ALGORITHM_RATE = 30.0, 5.0
_WINDOW = "1m"
_MOST_SERIES = 4


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A panel, and the largest of what it showed before the fault and at the end."""

    panel: str
    before: str
    after: str


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in a drill; seconds count from the injection."""

    name: str
    fired: dict[str, float]
    expected: tuple[str, ...]
    statuses: dict[int, int]
    seconds: float
    seen: list[Seen]


def run_drill(drill: Drill, *, interval: str, quiet: float, limit: float) -> DrillResult:
    """Run a system for `quiet` seconds, then with the fault until an expected alert fires.

    Alerts are recorded for at most `limit` seconds, and for a while after the last expected one.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        disk = stack.enter_context(mounted(folder / "disk", size_bytes=_DISK))
        models = write_repository(folder / "models", real=True)
        write_algorithm(models)
        system = stack.enter_context(System(folder / "disk/data", models=models))
        prometheus = stack.enter_context(
            running_prometheus(scrapes_of(system), interval=interval, rules=RULES)
        )
        load = Traffic(system.port, system.key, "/v1/classify", bodies("mood"), rate=_RATE)
        stack.enter_context(load)
        path, content = f"/v1/infer/{ALGORITHM}", items()
        stack.enter_context(Traffic(system.port, system.key, path, content, rate=_ALGORITHM_RATE))
        time.sleep(quiet)
        before = _look(prometheus, drill)
        load.take()
        began = time.monotonic()
        scene = Scene(system=system, models=models, disk=disk)
        with drill.inject(scene):
            fired = _watch(prometheus, drill, limit)
            after = _look(prometheus, drill)
            seconds = time.monotonic() - began
        return DrillResult(
            name=drill.name,
            fired=fired,
            expected=drill.alerts,
            statuses=load.take(),
            seconds=seconds,
            seen=[Seen(panel=panel, before=before[panel], after=after[panel]) for panel in after],
        )


def _watch(prometheus: Prometheus, drill: Drill, limit: float) -> dict[str, float]:
    """Return after how many seconds each alert fired that did not before."""
    known = set(prometheus.firing())
    fired: dict[str, float] = {}
    began = time.monotonic()

    def done() -> bool:
        passed = time.monotonic() - began
        for name in set(prometheus.firing()) - known - set(fired):
            fired[name] = round(passed, 1)
        return passed > limit or set(drill.alerts) <= set(fired)

    wait_until(done, within=limit + 10, what="alerts", every=0.5)
    return fired


def _look(prometheus: Prometheus, drill: Drill) -> dict[str, str]:
    """Return what each panel of the drill shows, by its name."""
    return {f"{uid}: {title}": _shown(prometheus, uid, title) for uid, title in drill.panels}


def _shown(prometheus: Prometheus, uid: str, title: str) -> str:
    dashboard = next(each for each in DASHBOARDS if each.uid == uid)
    panel = next(each for each in dashboard.panels() if each.title == title)
    values: list[tuple[float, str]] = []
    for query in panel.queries:
        for series in prometheus.query(filled_in(dashboard, query.expr, _WINDOW)):
            legend = query.legend
            for label, text in series["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", text)
            # Labels that are empty are left out of answers.
            legend = re.sub(r"{{\w+}}", "", legend)
            values.append((float(series["value"][1]), legend.strip()))
    values = sorted((each for each in values if each[0] == each[0]), reverse=True)
    shown = [f"{legend} {_figure(value)}".strip() for value, legend in values[:_MOST_SERIES]]
    return ", ".join(shown) or "no data"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
