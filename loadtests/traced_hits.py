"""Measures how much tracing slows memory hits, with healthy and with failing collectors.

The measured systems differ in their sampling rate or their collector, and take turns.
"""

import re
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.hit import Load, candidate, start
from loadtests.measured import OTHERS, bare_server, popular_bodies
from loadtests.options import connections, duration, rounds
from loadtests.report import show, table_of
from loadtests.turns import in_turns
from testing.ports import free_port
from testing.system import System

_UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
_OFF, _SAMPLED = "tracing off", "1 % sampled"
_SPANS = re.compile(r'sluicegate_trace_spans_total\{outcome="(\w+)"\} ([0-9.e+]+)')
_COLLECTORS = {"there": (200, 0.0), "slow": (200, 30.0), "refusing": (503, 0.0)}
_WAYS = {
    _OFF: (None, "there"),
    "tracing off, another process": (None, "there"),
    _SAMPLED: ("0.01", "there"),
    "1 % sampled, collector dead": ("0.01", "dead"),
    "10 % sampled, collector slow": ("0.1", "slow"),
    "10 % sampled, collector refusing": ("0.1", "refusing"),
    "100 % sampled": ("1", "there"),
    "100 % sampled, collector dead": ("1", "dead"),
}
"""For each variant: the share of requests that are sampled, and the state of the collector."""


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure hits without tracing, with tracing, and with a dead, slow or refusing collector."""
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = _systems(stack, root)
        candidates = {what: candidate(system) for what, system in systems.items()}
        for what in (_OFF, _SAMPLED):
            target = candidates[what].target
            unsampled = msgspec.structs.replace(target, headers=(*target.headers, _UNSAMPLED))
            name = f"{what}, callers with an unsampled `traceparent`"
            candidates[name] = candidates[what]._replace(target=unsampled)
        load = Load(root, connections, duration, list(systems.values()))
        runs = {what: partial(load.run, each, bodies) for what, each in candidates.items()}
        turns = in_turns(runs, rounds)
        spans = [f"Spans, {what}: {_spans(system)}" for what, system in systems.items()]
    show("Traced memory hits", table_of(turns), *spans)


def _systems(stack: ExitStack, root: Path) -> dict[str, System]:
    """Start a system for each variant of tracing."""
    models = root / "models"
    build_demo_models(models, print)
    urls = {"dead": f"http://127.0.0.1:{free_port()}"}
    for state, (status, delay) in _COLLECTORS.items():
        collector = bare_server(length=0, core=OTHERS, status=status, delay=delay)
        urls[state] = f"http://127.0.0.1:{stack.enter_context(collector).target.port}"
    systems = {}
    for number, (what, (sampled, collector_state)) in enumerate(_WAYS.items()):
        environment = {"OTEL_SDK_DISABLED": "true"}
        if sampled is not None:
            environment = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": urls[collector_state],
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": sampled,
            }
        systems[what] = System(root / f"system-{number}", models=models, environment=environment)
    return start(stack, systems, popular_bodies())


def _spans(system: System) -> dict[str, int]:
    """Return how many spans the workers exported, failed to export, and dropped."""
    counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
    with system.admin() as client:
        metrics = client.get("/metrics").raise_for_status().text
    for outcome, count in _SPANS.findall(metrics):
        counts[outcome] += int(float(count))
    return counts
