"""Measures the costs of tracing memory hits: processor time, and latency with a bad collector.

Systems that differ in their sampling rate, or their collector, are measured in turns.
"""

import re
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import click
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.hit import Load, candidate, start
from loadtests.latency import capacity, half, show as show_latency
from loadtests.measured import BARE, OTHERS, bare_server, popular_bodies, settle, target_of
from loadtests.options import connections, duration, rounds
from loadtests.report import Row, milliseconds, show
from loadtests.steady import SteadyLoadSpec, send_steadily
from loadtests.turns import in_turns, paired
from testing.ports import free_port
from testing.system import System

_SHARE = 0.1  # of requests that are sampled: with 0.01 a queue takes long to fill
_UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
_OFF, _CONTROL = "tracing off", "tracing off, another process"
_SPANS = re.compile(r'sluicegate_trace_spans_total\{outcome="(\w+)"\} ([0-9.e+]+)')
_COLLECTORS = {"": (200, 0.0), "slow": (200, 30.0), "refusing": (503, 0.0)}


class TracedWay(msgspec.Struct, frozen=True, kw_only=True):
    """A way to trace: the share of requests that is sampled, `None` for none, and the collector.

    `trouble` is `""`, `dead`, `slow` or `refusing`.
    """

    sampled: float | None = None
    trouble: str = ""


@click.command()
@connections
@duration(5.0)
@rounds(5)
@click.option("--collectors", is_flag=True, help="Measure latency beside collectors in trouble.")
def measure(*, connections: int, duration: float, rounds: int, collectors: bool) -> None:
    """Measure hits with tracing off, on, and with a dead collector."""
    wrk.require()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if collectors:
            _measure_latency(stack, Path(folder), duration, rounds)
        else:
            _measure_costs(stack, Path(folder), connections, duration, rounds)


def _measure_costs(
    stack: ExitStack, root: Path, connections: int, duration: float, rounds: int
) -> None:
    ways = {
        _OFF: TracedWay(),
        _CONTROL: TracedWay(),
        "1 % sampled": TracedWay(sampled=0.01),
        "1 % sampled, collector dead": TracedWay(sampled=0.01, trouble="dead"),
        "100 % sampled": TracedWay(sampled=1.0),
        "100 % sampled, collector dead": TracedWay(sampled=1.0, trouble="dead"),
    }
    systems = _systems(stack, root, ways)
    load = Load(root, connections, duration, list(systems.values()))
    candidates = {what: candidate(system) for what, system in systems.items()}
    for what in (_OFF, "1 % sampled"):
        target = candidates[what].target
        unsampled = msgspec.structs.replace(target, headers=(*target.headers, _UNSAMPLED))
        name = f"{what}, callers with an unsampled `traceparent`"
        candidates[name] = candidates[what]._replace(target=unsampled)
    bodies = popular_bodies()
    runs = in_turns(
        {what: partial(load.run, each, bodies) for what, each in candidates.items()}, rounds
    )
    costs = {what: [run.costs.server for run in each] for what, each in runs.items()}
    table = [
        Row(
            what=f"{what}: {median(costs[what]):.1f} µs of the worker",
            rate=round(1e6 / median(costs[what]), 1),
            ratio=round(paired(costs[_OFF], costs[what]), 3),
            p50=milliseconds(median(run.sent.p50 for run in each)),
            p99=milliseconds(median(run.sent.p99 for run in each)),
            statuses={200: sum(run.sent.requests - run.sent.refused for run in each)},
        )
        for what, each in runs.items()
    ]
    show("Traced memory hits", table)


def _measure_latency(stack: ExitStack, root: Path, duration: float, rounds: int) -> None:
    """Measure hits at half of the capacity beside collectors in trouble."""
    ways = {_OFF: TracedWay(), "collector answers": TracedWay(sampled=_SHARE)} | {
        f"collector {trouble}": TracedWay(sampled=_SHARE, trouble=trouble)
        for trouble in ("dead", "slow", "refusing")
    }
    bodies = popular_bodies()
    systems = _systems(stack, root, ways)
    targets = {what: target_of(system) for what, system in systems.items()}
    able = {what: capacity(target, bodies, root) for what, target in targets.items()}
    bare = stack.enter_context(bare_server()).target
    targets[BARE], able[BARE] = bare, capacity(bare, bodies, root)
    loads = {
        what: SteadyLoadSpec(
            target=target, bodies=bodies, rate=half(min(able.values())), duration=duration
        )
        for what, target in targets.items()
    }
    runs = in_turns(
        {what: partial(send_steadily, load) for what, load in loads.items()},
        rounds,
        rest=partial(settle, systems.values()),
    )
    show_latency("Latency of traced memory hits", loads, able, runs)
    for what, system in systems.items():
        print(f"spans, {what}: {_spans(system)}")


def _systems(stack: ExitStack, root: Path, ways: dict[str, TracedWay]) -> dict[str, System]:
    """Start a system for each way of tracing."""
    models = root / "models"
    build_demo_models(models, print)
    urls = {"dead": f"http://127.0.0.1:{free_port()}"}
    for trouble in {way.trouble for way in ways.values()} - {"dead"}:
        status, delay = _COLLECTORS[trouble]
        collector = bare_server(length=0, core=OTHERS, status=status, delay=delay)
        urls[trouble] = f"http://127.0.0.1:{stack.enter_context(collector).target.port}"
    systems = {}
    for number, (what, way) in enumerate(ways.items()):
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": urls[way.trouble],
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": str(way.sampled),
        }
        if way.sampled is None:
            environment = {"OTEL_SDK_DISABLED": "true"}
        folder = root / f"system-{number}"
        systems[what] = System(folder, models=models, environment=environment)
    return start(stack, systems, popular_bodies())


def _spans(system: System) -> dict[str, int]:
    """Return how many spans the workers exported, failed to export and dropped."""
    counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
    with system.admin() as client:
        metrics = client.get("/metrics").raise_for_status().text
    for outcome, count in _SPANS.findall(metrics):
        counts[outcome] += int(float(count))
    return counts
