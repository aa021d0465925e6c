"""Measures cache hits: beside rivals, through dialects, with tracing, and at a steady rate.

The measured server has one core, and all other processes share the other core. In each round, every
server is measured once. The report has the rates and three processor times of a request. The first
one is the server's. The second one is that of all other processes that the server needs: Redis, and
the processes that carry usage events until they are billed. The third one is the load generator's.
"""

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from loadtests import wrk
from loadtests.bare_server import BARE, bare_server
from loadtests.generator import CALLERS, Target
from loadtests.machine import pin
from loadtests.measured import (
    OTHERS,
    SERVER,
    fill,
    give_core,
    metered,
    popular_bodies,
    settle,
    target_of,
)
from loadtests.open_loop import steady_load
from loadtests.options import duration, rounds
from loadtests.report import Row, Turn, show, table_of
from loadtests.rivals import nginx
from loadtests.turns import in_turns
from loadtests.workload import sentences
from sluicegate.backends.model_tools.demo.build import build_demo_models
from testing.system import System

__all__ = ["OTHERS", "SERVER", "table_of"]

FAST, REDIS = "memory hit", "Redis hit (memory tier off)"
_ROOT = Path(__file__).parents[1]
_NEEDED = ("shipper", "billing", "request-log", "valkey-cache", "valkey-state")
_OFF, _SAMPLED = "tracing off", "1 % sampled"
_TRACED = {_OFF: "", _SAMPLED: "0.01", "100 % sampled": "1"}
"""For each variant, the share of requests that are sampled."""
_UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
_SPANS = re.compile(r'sluicegate_trace_spans_total\{outcome="(\w+)"\} ([0-9.e+]+)')


class Candidate(NamedTuple):
    """A server to measure, and the other processes that it needs."""

    target: Target
    server: list[int]
    others: list[int]


class Load(NamedTuple):
    """A load that keeps one core busy.

    After each run, it waits until `systems` have billed the run.
    """

    folder: Path
    connections: int
    duration: float
    systems: Sequence[System]

    def run(self, candidate: Candidate, bodies: Sequence[bytes]) -> Turn:
        """Send the load to a server."""
        send = partial(
            wrk.send,
            candidate.target,
            bodies,
            connections=self.connections,
            duration=self.duration,
            core=OTHERS,
            folder=self.folder,
        )
        server, others = candidate.server, candidate.others
        return metered(send, server=server, others=others, rest=partial(settle, self.systems))()


@click.command("hit")
@duration(5.0)
@rounds(5)
def measure_hits(*, duration: float, rounds: int) -> None:
    """Compare cache hits by tier with the hits of rivals and with a server without logic."""
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = start_systems(stack, root, bodies)
        bare = stack.enter_context(bare_server(core=SERVER))
        candidates = {BARE: Candidate(bare.target, [bare.pid], [])}
        candidates |= {what: candidate(system) for what, system in systems.items()}
        # Answers that tell times are made anew for each request.
        timed = candidate(systems[FAST], x_server_timing="1")
        candidates["memory hit, not replayed"] = timed
        if nginx.is_installed():
            texts = sentences(len(bodies), seed=1)
            candidates |= rivals(stack, root, texts, answer=answer_of(systems, bodies[0]))
        load = Load(root, CALLERS, duration, list(systems.values()))
        runs = {what: partial(load.run, each, bodies) for what, each in candidates.items()}
        turns = in_turns(runs, rounds)
    missing = ["nginx with Lua is missing: `make install-system` installs it"]
    show(
        "Hits: one worker on one core",
        table_of(turns),
        *([] if nginx.is_installed() else missing),
    )


@click.command("dialect-hits")
@duration(5.0)
@rounds(5)
def measure_dialects(*, duration: float, rounds: int) -> None:
    """Compare memory hits of OpenAI's embeddings route with those of the native route."""
    wrk.require()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (system,) = start_systems(stack, root, [], ways=[FAST]).values()
        load = Load(root, CALLERS, duration, [system])
        for texts, form in product((1, 4), ("float", "base64")):
            bodies = _embedding_bodies(texts, form)
            runs = {}
            for name, path in (("native", "/v1/embed"), ("OpenAI", "/v1/embeddings")):
                fill(system, bodies, path)
                there = candidate(system)._replace(target=target_of(system, path))
                runs[f"{name}, {form}, texts a request: {texts}"] = partial(load.run, there, bodies)
            rows += table_of(in_turns(runs, rounds))
    show("Hits of dialects: ratios are to the native route above", rows)


@click.command("traced-hits")
@duration(5.0)
@rounds(5)
def measure_traced(*, duration: float, rounds: int) -> None:
    """Measure how tracing slows memory hits."""
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = _traced_systems(stack, root, bodies)
        candidates = {what: candidate(system) for what, system in systems.items()}
        for what in (_OFF, _SAMPLED):
            target = candidates[what].target
            unsampled = msgspec.structs.replace(target, headers=(*target.headers, _UNSAMPLED))
            name = f"{what}, callers with an unsampled `traceparent`"
            candidates[name] = candidates[what]._replace(target=unsampled)
        load = Load(root, CALLERS, duration, list(systems.values()))
        runs = {what: partial(load.run, each, bodies) for what, each in candidates.items()}
        turns = in_turns(runs, rounds)
        spans = [f"Spans, {what}: {_spans(system)}" for what, system in systems.items()]
    show("Traced memory hits", table_of(turns), *spans)


@click.command("latency")
@duration(4.0)
@rounds(5)
def measure_latency(*, duration: float, rounds: int) -> None:
    """Measure the latency of hits of each cache tier at a steady rate.

    The rate is half the capacity of each system, but at most 8,000 requests a second. The latency
    of the bare server shows how much comes from the machine and the load generator.
    """
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = start_systems(stack, root, bodies)
        targets = {BARE: stack.enter_context(bare_server(core=SERVER)).target}
        targets |= {what: target_of(system) for what, system in systems.items()}
        rest = partial(settle, list(systems.values()))
        runs = {}
        for what, target in targets.items():
            full = wrk.send(
                target, bodies, connections=CALLERS, duration=2.0, core=OTHERS, folder=root
            )
            rest()
            rate = float(f"{min(8_000.0, full.rate / 2):.2g}")
            load = partial(steady_load, target, bodies, rate=rate, duration=duration, core=OTHERS)
            runs[f"{what}, {rate:,.0f} a second"] = metered(load, rest=rest)
        turns = in_turns(runs, rounds)
    show(
        "Latency of hits",
        table_of(turns, by=lambda turn: turn.outcome.percentile(0.99)),
        "Each server is offered half of the rate that it reaches with 32 callers who wait.",
    )


def start_systems(
    stack: ExitStack, root: Path, bodies: list[bytes], *, ways: Sequence[str] = ()
) -> dict[str, System]:
    """Start the product once for each way to answer a hit, fill caches, and pin processes."""
    config = Path(shutil.copytree(_ROOT / "config", root / "config")) / "gateway.yaml"
    config.write_text(
        config.read_text().replace("cache:\n", "cache:\n  memory_enabled: false\n", 1)
    )
    models = root / "models"
    build_demo_models(models, print)
    systems = {
        FAST: System(root / "fast", models=models),
        REDIS: System(root / "redis", models=models, config=config.parent),
    }
    return _start(stack, {what: systems[what] for what in ways or systems}, bodies)


def _traced_systems(stack: ExitStack, root: Path, bodies: list[bytes]) -> dict[str, System]:
    """Start a system for each variant of tracing."""
    models = root / "models"
    build_demo_models(models, print)
    collector = stack.enter_context(bare_server(core=OTHERS)).target
    systems = {}
    for number, (what, sampled) in enumerate(_TRACED.items()):
        environment = {"OTEL_SDK_DISABLED": "true"}
        if sampled:
            environment = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": sampled,
            }
        systems[what] = System(root / f"system-{number}", models=models, environment=environment)
    return _start(stack, systems, bodies)


def _start(stack: ExitStack, systems: dict[str, System], bodies: list[bytes]) -> dict[str, System]:
    """Start systems, pin each worker to the measured core, and cache the answers to `bodies`."""
    for system in systems.values():
        stack.enter_context(system)
        fill(system, bodies)
        give_core(system, "gateway")
    return systems


def candidate(system: System, **headers: str) -> Candidate:
    """Return a system as a candidate, whose server is the worker, and the headers of its requests.

    Backends and the operators' process are idle during hits, so they are left out.
    """
    worker = [p.pid for p in system.processes("gateway")]
    others = [p.pid for p in system.processes() if p.role in _NEEDED]
    return Candidate(target_of(system, **headers), worker, others)


def rivals(stack: ExitStack, root: Path, texts: list[str], *, answer: str) -> dict[str, Candidate]:
    """Start nginx with Lua twice: one caches the answer to each text in Redis, one in memory."""
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
    """Return an answer of the product, which rivals then send."""
    return fill(next(iter(systems.values())), [body])[0].decode()


def _embedding_bodies(texts: int, form: str) -> list[bytes]:
    """Return requests of `texts` texts each that ask for vectors in the form `form`."""
    known = sentences(100, seed=1)
    inputs = [known[at : at + texts] for at in range(0, len(known), texts)] if texts > 1 else known
    fields: dict[str, object] = {"model": "minilm", "encoding_format": form}
    return [msgspec.json.encode(fields | {"input": each}) for each in inputs]


def _spans(system: System) -> dict[str, int]:
    """Return how many spans the workers exported, failed to export, and dropped."""
    counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
    with system.admin() as client:
        metrics = client.get("/metrics").raise_for_status().text
    for outcome, count in _SPANS.findall(metrics):
        counts[outcome] += int(float(count))
    return counts
