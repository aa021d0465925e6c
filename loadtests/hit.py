"""Measures a worker's cache hits, beside rivals and a server without logic.

Servers are measured in turns; the measured one has a core, and everything else the other one.
Beside the rates stands the processor time of a request: of the server, of all that it needs (Redis,
the processes of events until a request is billed), and of the load generator.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.generator import Target
from loadtests.machine import pin, processor_seconds
from loadtests.measured import (
    BARE,
    OTHERS,
    SERVER,
    bare_server,
    fill,
    give_core,
    memory_of,
    popular_bodies,
    settle,
    target_of,
)
from loadtests.options import connections, duration, rounds
from loadtests.report import Costs, Row, milliseconds, show
from loadtests.rivals import nginx
from loadtests.turns import in_turns, middle
from loadtests.workload import sentences
from testing.system import System

__all__ = [
    "OTHERS",
    "SERVER",
    "Candidate",
    "Load",
    "Run",
    "answer_of",
    "rivals",
    "settle",
    "start_systems",
    "target_of",
]

FAST, APPLICATION, REDIS = (
    *("memory hit, fast path", "memory hit, application", "Redis hit (memory tier off)"),
)
_ROOT = Path(__file__).parents[1]
_NEEDED = ("shipper", "billing", "request-log", "valkey-cache", "valkey-state")
_MISSING = "not measured: nginx with Lua is missing (`make install-system`)"


class Candidate(NamedTuple):
    """A server to measure, with the processes that it needs beside it."""

    target: Target
    server: list[int]
    others: list[int]


class Run(NamedTuple):
    """A run of one server: the result of the load generator, and the costs of a request."""

    sent: wrk.WrkResult
    costs: Costs


class Load(NamedTuple):
    """A load that fills one core; `systems` have billed one run before the next begins."""

    folder: Path
    connections: int
    duration: float
    systems: Sequence[System]

    def run(self, candidate: Candidate, bodies: Sequence[bytes]) -> Run:
        """Load a server."""
        before = _used(candidate.server), _used(candidate.others)
        sent = wrk.send(
            candidate.target,
            bodies,
            connections=self.connections,
            duration=self.duration,
            core=OTHERS,
            folder=self.folder,
        )
        server = _used(candidate.server)
        settle(self.systems)
        used = server, _used(candidate.others)
        each = (1e6 * (b - a) / sent.requests for a, b in zip(before, used, strict=True))
        costs = Costs(
            server=next(each), others=next(each), generator=1e6 * sent.processor / sent.requests
        )
        return Run(sent, costs)


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure cache hits by tier and entry point, beside rivals."""
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = start_systems(stack, root, bodies)
        bare = stack.enter_context(bare_server())
        candidates = {BARE: Candidate(bare.target, [bare.pid], [])}
        candidates |= {what: candidate(system) for what, system in systems.items()}
        if nginx.is_installed():
            texts = sentences(len(bodies), seed=1)
            candidates |= rivals(stack, root, texts, answer=answer_of(systems, bodies[0]))
        load = Load(root, connections, duration, list(systems.values()))
        runs = in_turns(
            {what: partial(load.run, each, bodies) for what, each in candidates.items()}, rounds
        )
        memory = memory_of(systems[FAST])
    table = table_of(runs)
    if not nginx.is_installed():
        table += [Row(what=f"nginx + Lua, {_MISSING}", rate=0, ratio=0)]
    show("Hits: one worker on one core", table, memory)


def start_systems(
    stack: ExitStack, root: Path, bodies: list[bytes], *, ways: Sequence[str] = ()
) -> dict[str, System]:
    """Start the product once for each of `ways` to a hit, by default all, filled and pinned."""
    config = Path(shutil.copytree(_ROOT / "config", root / "config")) / "gateway.yaml"
    config.write_text(
        config.read_text().replace("cache:\n", "cache:\n  memory_enabled: false\n", 1)
    )
    models = root / "models"
    build_demo_models(models, print)
    off = {"SLUICEGATE_FAST_LANE": "false"}
    systems = {
        FAST: System(root / "fast", models=models),
        APPLICATION: System(root / "application", models=models, environment=off),
        REDIS: System(root / "redis", models=models, config=config.parent),
    }
    return start(stack, {what: systems[what] for what in ways or systems}, bodies)


def start(
    stack: ExitStack, systems: Mapping[str, System], bodies: list[bytes]
) -> dict[str, System]:
    """Start systems, and give the worker of each the measured core, with answers to `bodies`."""
    for system in systems.values():
        stack.enter_context(system)
        fill(system, bodies)
        give_core(system, "gateway")
    return dict(systems)


def candidate(system: System) -> Candidate:
    """Return a system with its worker as the server; backends and operators' processes are idle."""
    worker = [p.pid for p in system.processes("gateway")]
    others = [p.pid for p in system.processes() if p.role in _NEEDED]
    return Candidate(target_of(system), worker, others)


def rivals(stack: ExitStack, root: Path, texts: list[str], *, answer: str) -> dict[str, Candidate]:
    """Start nginx with Lua, filled with the answer to each text: with Redis, and with memory."""
    redis_port, redis = stack.enter_context(nginx.filled_valkey(texts, answer=answer))
    pin([redis], OTHERS)
    candidates = {}
    for kind in ("redis", "memory"):
        port, process = stack.enter_context(
            nginx.nginx(kind, root / f"nginx-{kind}", texts, answer=answer, redis_port=redis_port)
        )
        pin([process], SERVER)
        headers = (("authorization", f"Bearer {nginx.KEY}"),)
        target = Target(host="127.0.0.1", port=port, path="/v1/classify", headers=headers)
        what = f"nginx + Lua, cache in {kind.replace('redis', 'Redis')}"
        candidates[what] = Candidate(target, [process], [redis] if kind == "redis" else [])
    return candidates


def answer_of(systems: Mapping[str, System], body: bytes) -> str:
    """Return an answer of the product, for rivals to send."""
    return fill(next(iter(systems.values())), [body])[0].decode()


def table_of(runs: Mapping[str, Sequence[Run]]) -> list[Row]:
    """Return the median run of each by rate, and the medians of costs; ratios are to the first."""
    medians = {what: middle(each, lambda run: run.sent.rate).sent for what, each in runs.items()}
    baseline = next(iter(medians.values())).rate
    return [
        Row(
            what=what,
            rate=round(sent.rate, 1),
            ratio=round(sent.rate / baseline, 3),
            p50=milliseconds(sent.p50),
            p99=milliseconds(sent.p99),
            statuses={200: sent.requests - sent.refused, 0: sent.refused + sent.broken},
            costs=Costs(
                server=median(run.costs.server for run in runs[what]),
                others=median(run.costs.others for run in runs[what]),
                generator=median(run.costs.generator for run in runs[what]),
            ),
        )
        for what, sent in medians.items()
    ]


def _used(processes: list[int]) -> float:
    return sum(map(processor_seconds, processes))
