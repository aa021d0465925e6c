"""Measures what tracing costs memory hits, by the processor time of the worker for each.

Systems that differ in their sampling rate, or their collector, are measured in turns.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.generator import Target
from loadtests.harness.ports import free_port
from loadtests.harness.system import System
from loadtests.hit import OTHERS, SERVER, bare_server, fill, settle, target_of
from loadtests.machine import busy_seconds, pin, this_machine
from loadtests.report import Row, show
from loadtests.workload import sentences

_TEXTS = 100
_UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure hits with tracing off, on, and with a dead collector; print the table."""
    if not wrk.is_installed():
        sys.exit("`wrk` is needed; `make install-system` installs it")
    bodies = [
        msgspec.json.encode({"model": "sentiment", "input": text})
        for text in sentences(_TEXTS, seed=1)
    ]
    costs: dict[str, list[float]] = {}
    latencies: dict[str, list[wrk.WrkResult]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = _systems(stack, root, bodies)
        for _ in range(rounds):
            for what, (system, target) in systems.items():
                (worker,) = system.processes("gateway")
                before = busy_seconds(worker.pid)
                sent = wrk.send(
                    target,
                    bodies,
                    connections=connections,
                    duration=duration,
                    core=OTHERS,
                    folder=root,
                )
                spent = busy_seconds(worker.pid) - before
                costs.setdefault(what, []).append(spent / sent.requests)
                latencies.setdefault(what, []).append(sent)
                settle([system])
    off = median(costs["tracing off"])
    table = [
        Row(
            what=f"{what}: {median(spent) * 1e6:.1f} µs of the worker",
            rate=round(1 / median(spent), 1),
            ratio=round(off / median(spent), 3),
            p50=round(median(run.p50 for run in latencies[what]) * 1000, 2),
            p99=round(median(run.p99 for run in latencies[what]) * 1000, 2),
            statuses={200: sum(run.requests - run.refused for run in latencies[what])},
        )
        for what, spent in costs.items()
    ]
    show("Traced memory hits", table, {}, this_machine())


def _systems(stack: ExitStack, root: Path, bodies: list[bytes]) -> dict[str, tuple[System, Target]]:
    """Start a system for each way of tracing, filled and pinned; return where to send to."""
    models = root / "models"
    build_demo_models(models, print)
    collector = f"http://127.0.0.1:{bare_server(stack, length=0, core=OTHERS).port}"
    dead = f"http://127.0.0.1:{free_port()}"
    found: dict[str, tuple[System, Target]] = {}
    for what, rate, endpoint in (
        ("tracing off", "", ""),
        ("1 % sampled", "0.01", collector),
        ("1 % sampled, collector dead", "0.01", dead),
        ("100 % sampled", "1", collector),
        ("100 % sampled, collector dead", "1", dead),
    ):
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": rate,
        }
        system = System(
            root / what.replace(" ", "-"),
            models=models,
            environment=environment if rate else {"OTEL_SDK_DISABLED": "true"},
        )
        stack.enter_context(system)
        fill(system, bodies)
        pin((p.pid for p in system.processes() if p.role != "gateway"), OTHERS)
        pin((p.pid for p in system.processes("gateway")), SERVER)
        found[what] = system, target_of(system)
    for what in ("tracing off", "1 % sampled"):
        system, target = found[what]
        unsampled = msgspec.structs.replace(target, headers=(*target.headers, _UNSAMPLED))
        found[f"{what}, callers with an unsampled `traceparent`"] = system, unsampled
    return found
