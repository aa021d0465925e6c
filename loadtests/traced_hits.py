"""Measures what tracing costs memory hits: processor time, and latency beside a bad collector.

Systems that differ in their sampling rate, or their collector, are measured in turns.
"""

import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.hit import OTHERS, SERVER, bare_server, fill, settle, target_of
from loadtests.machine import pin, processor_seconds, this_machine
from loadtests.options import connections, duration, rounds
from loadtests.report import Row, keep, show
from loadtests.steady import SteadyLoadResult, SteadyLoadSpec, send_steadily
from loadtests.workload import sentences
from testing.ports import free_port
from testing.system import System

_TEXTS = 100
_SHARE = 0.1  # of requests that are sampled: with 0.01 a queue takes long to fill
_CAPACITY = 2.0  # seconds that tell what a system can answer
_UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
_OFF, _CONTROL = "tracing off", "tracing off, another process"
_BARE = "bare uvicorn, which does nothing"
_SPANS = re.compile(r'sluicegate_trace_spans_total\{outcome="(\w+)"\} ([0-9.e+]+)')
_COLLECTORS = {"": (200, 0.0), "slow": (200, 30.0), "refusing": (503, 0.0)}


class TracedWay(msgspec.Struct, frozen=True, kw_only=True):
    """A way to trace: the share of requests that is sampled, `None` for none, and the collector.

    `trouble` is `""`, `dead`, `slow` or `refusing`.
    """

    sampled: float | None = None
    trouble: str = ""


class TracedLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The median run by p99 of hits at a rate, in ms; `spans` counts those of all runs."""

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
    """Measure hits with tracing off, on, and with a dead collector; print the table."""
    if collectors:
        measure_latency(duration=duration, rounds=rounds)
        return
    ways = {
        _OFF: TracedWay(),
        _CONTROL: TracedWay(),
        "1 % sampled": TracedWay(sampled=0.01),
        "1 % sampled, collector dead": TracedWay(sampled=0.01, trouble="dead"),
        "100 % sampled": TracedWay(sampled=1.0),
        "100 % sampled, collector dead": TracedWay(sampled=1.0, trouble="dead"),
    }
    bodies = _bodies()
    costs: dict[str, list[float]] = {}
    latencies: dict[str, list[wrk.WrkResult]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = _systems(stack, root, bodies, ways)
        subjects = {what: (system, target_of(system)) for what, system in systems.items()}
        for what in (_OFF, "1 % sampled"):
            system, target = subjects[what]
            unsampled = msgspec.structs.replace(target, headers=(*target.headers, _UNSAMPLED))
            subjects[f"{what}, callers with an unsampled `traceparent`"] = system, unsampled
        for _ in range(rounds):
            for what, (system, target) in subjects.items():
                (worker,) = system.processes("gateway")
                before = processor_seconds(worker.pid)
                sent = wrk.send(
                    target,
                    bodies,
                    connections=connections,
                    duration=duration,
                    core=OTHERS,
                    folder=root,
                )
                spent = processor_seconds(worker.pid) - before
                costs.setdefault(what, []).append(spent / sent.requests)
                latencies.setdefault(what, []).append(sent)
                settle([system])
    table = [
        Row(
            what=f"{what}: {median(spent) * 1e6:.1f} µs of the worker",
            rate=round(1 / median(spent), 1),
            ratio=round(paired(costs[_OFF], spent), 3),
            p50=round(median(run.p50 for run in latencies[what]) * 1000, 2),
            p99=round(median(run.p99 for run in latencies[what]) * 1000, 2),
            statuses={200: sum(run.requests - run.refused for run in latencies[what])},
        )
        for what, spent in costs.items()
    ]
    show("Traced memory hits", table, {}, this_machine())


def measure_latency(*, duration: float, rounds: int) -> None:
    """Measure hits at half of the capacity beside collectors in trouble, and print the table."""
    ways = {_OFF: TracedWay(), "collector answers": TracedWay(sampled=_SHARE)} | {
        f"collector {trouble}": TracedWay(sampled=_SHARE, trouble=trouble)
        for trouble in ("dead", "slow", "refusing")
    }
    bodies = _bodies()
    runs: dict[str, list[SteadyLoadResult]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = _systems(stack, root, bodies, ways)
        targets = {what: target_of(system) for what, system in systems.items()}
        capacity = min(
            wrk.send(
                target, bodies, connections=32, duration=_CAPACITY, core=OTHERS, folder=root
            ).rate
            for target in targets.values()
        )
        targets[_BARE] = bare_server(stack, length=330)
        rate = float(f"{capacity / 2:.2g}")
        for _ in range(rounds):
            for what, target in targets.items():
                spec = SteadyLoadSpec(target=target, bodies=bodies, rate=rate, duration=duration)
                runs.setdefault(what, []).append(send_steadily(spec))
                settle(systems.values())
        spans = {what: _spans(system) for what, system in systems.items()}
    _show([latency_of(what, rate, every, spans.get(what, {})) for what, every in runs.items()])


def paired(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the median of `before / after`, round by round: a busy machine slows both down."""
    return median(one / other for one, other in zip(before, after, strict=True))


def latency_of(
    what: str, rate: float, runs: Sequence[SteadyLoadResult], spans: dict[str, int]
) -> TracedLatency:
    """Return the line of a way that was measured so often."""
    run = sorted(runs, key=lambda run: run.percentile(0.99))[len(runs) // 2]
    return TracedLatency(
        what=what,
        rate=rate,
        p50=round(run.percentile(0.5) * 1000, 2),
        p99=round(run.percentile(0.99) * 1000, 2),
        prompt_p99=round(run.prompt_percentile(0.99) * 1000, 2),
        failed=sum(run.failed for run in runs),
        spans=spans,
    )


def span_counts(metrics: str) -> dict[str, int]:
    """Return how many spans the workers exported, failed to export and dropped, by `metrics`."""
    counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
    for figure, count in _SPANS.findall(metrics):
        counts[figure] += int(float(count))
    return counts


def _bodies() -> list[bytes]:
    if not wrk.is_installed():
        sys.exit("`wrk` is needed; `make install-system` installs it")
    texts = sentences(_TEXTS, seed=1)
    return [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]


def _systems(
    stack: ExitStack, root: Path, bodies: list[bytes], ways: dict[str, TracedWay]
) -> dict[str, System]:
    """Start a system for each way of tracing, filled and pinned."""
    models = root / "models"
    build_demo_models(models, print)
    urls = {"dead": f"http://127.0.0.1:{free_port()}"}
    for trouble in {way.trouble for way in ways.values()} - {"dead"}:
        status, delay = _COLLECTORS[trouble]
        collector = bare_server(stack, length=0, core=OTHERS, status=status, delay=delay)
        urls[trouble] = f"http://127.0.0.1:{collector.port}"
    found = {}
    for number, (what, way) in enumerate(ways.items()):
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": urls[way.trouble],
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": str(way.sampled),
        }
        off = {"OTEL_SDK_DISABLED": "true"}
        system = System(
            root / f"system-{number}",
            models=models,
            environment=off if way.sampled is None else environment,
        )
        stack.enter_context(system)
        fill(system, bodies)
        pin((p.pid for p in system.processes() if p.role != "gateway"), OTHERS)
        pin((p.pid for p in system.processes("gateway")), SERVER)
        found[what] = system
    return found


def _spans(system: System) -> dict[str, int]:
    with system.admin() as client:
        return span_counts(client.get("/metrics").raise_for_status().text)


def _show(table: Sequence[TracedLatency]) -> None:
    machine = this_machine()
    print(f"\n## Latency of traced memory hits\n\n{machine.headline}\n")
    print("| what | a second | p50 ms | p99 ms | p99 of those sent in time | failed | spans |")
    print("|---|---|---|---|---|---|---|")
    for line in table:
        spans = ", ".join(f"{count} {figure}" for figure, count in line.spans.items()) or "-"
        print(
            f"| {line.what} | {line.rate:,.0f} | {line.p50} | {line.p99} | {line.prompt_p99}"
            f" | {line.failed} | {spans} |"
        )
    keep("Latency of traced memory hits", table, {}, machine)
