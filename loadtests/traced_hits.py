"""Measures the costs of tracing memory hits: processor time, and latency with a bad collector.

Systems that differ in their sampling rate, or their collector, are measured in turns.
"""

import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import click
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.hit import Load, candidate, start
from loadtests.latency import capacity, half
from loadtests.measured import BARE, OTHERS, bare_server, popular_bodies, settle, target_of
from loadtests.options import connections, duration, rounds
from loadtests.report import Row, heading, keep, milliseconds, print_table, show
from loadtests.steady import SteadyLoadResult, SteadyLoadSpec, send_steadily
from loadtests.turns import in_turns, middle, paired
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


class TracedLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The median run by p99 of hits at a rate, in ms; `spans` counts the spans of all runs."""

    what: str
    rate: float
    p50: float
    p99: float
    prompt_p99: float
    """The p99 of the requests that left in time."""
    failed: int
    spans: dict[str, int]


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
    rate = half(min(capacity(target, bodies, root) for target in targets.values()))
    targets[BARE] = stack.enter_context(bare_server()).target
    loads = {
        what: SteadyLoadSpec(target=target, bodies=bodies, rate=rate, duration=duration)
        for what, target in targets.items()
    }
    runs = in_turns(
        {what: partial(send_steadily, load) for what, load in loads.items()},
        rounds,
        rest=partial(settle, systems.values()),
    )
    spans = {what: _spans(system) for what, system in systems.items()}
    _show([latency_of(what, rate, every, spans.get(what, {})) for what, every in runs.items()])


def latency_of(
    what: str, rate: float, runs: Sequence[SteadyLoadResult], spans: dict[str, int]
) -> TracedLatency:
    """Return the line of a way that was measured so often."""
    run = middle(runs, lambda run: run.percentile(0.99))
    return TracedLatency(
        what=what,
        rate=rate,
        p50=milliseconds(run.percentile(0.5)),
        p99=milliseconds(run.percentile(0.99)),
        prompt_p99=milliseconds(run.prompt_percentile(0.99)),
        failed=sum(run.failed for run in runs),
        spans=spans,
    )


def span_counts(metrics: str) -> dict[str, int]:
    """Return how many spans the workers exported, failed to export and dropped, by `metrics`."""
    counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
    for figure, count in _SPANS.findall(metrics):
        counts[figure] += int(float(count))
    return counts


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
    with system.admin() as client:
        return span_counts(client.get("/metrics").raise_for_status().text)


def _show(table: Sequence[TracedLatency]) -> None:
    title = "Latency of traced memory hits"
    machine = heading(title)
    print_table(
        ("what", "a second", "p50 ms", "p99 ms", "p99 of those sent in time", "failed", "spans"),
        [
            (
                *(line.what, f"{line.rate:,.0f}", line.p50, line.p99, line.prompt_p99, line.failed),
                ", ".join(f"{count} {figure}" for figure, count in line.spans.items()) or "-",
            )
            for line in table
        ],
    )
    keep(title, table, {}, machine)
