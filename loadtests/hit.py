"""Compares a worker's cache hits with those of rivals, and with a server without logic.

In each round, every server is measured once. The measured server has one core, and all other
processes share the other core. The report has the rates and three processor times of a request. The
first one is the server's. The second one is that of all other processes that the server needs:
Redis, and the processes that carry usage events until they are billed. The third one is the load
generator's.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.generator import Target
from loadtests.machine import pin
from loadtests.measured import (
    BARE,
    OTHERS,
    SERVER,
    bare_server,
    fill,
    give_core,
    memory_of,
    metered,
    popular_bodies,
    settle,
    target_of,
)
from loadtests.options import connections, duration, rounds
from loadtests.report import Turn, show, table_of
from loadtests.rivals import nginx
from loadtests.turns import in_turns
from loadtests.workload import sentences
from testing.system import System

__all__ = ["OTHERS", "SERVER", "settle", "table_of", "target_of"]

FAST, NOT_REPLAYED, REDIS = (
    *("memory hit", "memory hit, not replayed", "Redis hit (memory tier off)"),
)
_ROOT = Path(__file__).parents[1]
_NEEDED = ("shipper", "billing", "request-log", "valkey-cache", "valkey-state")


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


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure cache hits by tier, and the same load on rivals."""
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = start_systems(stack, root, bodies)
        bare = stack.enter_context(bare_server())
        candidates = {BARE: Candidate(bare.target, [bare.pid], [])}
        candidates |= {what: candidate(system) for what, system in systems.items()}
        # Answers that tell times are made anew for each request.
        candidates[NOT_REPLAYED] = candidate(systems[FAST], x_server_timing="1")
        if nginx.is_installed():
            texts = sentences(len(bodies), seed=1)
            candidates |= rivals(stack, root, texts, answer=answer_of(systems, bodies[0]))
        load = Load(root, connections, duration, list(systems.values()))
        runs = {what: partial(load.run, each, bodies) for what, each in candidates.items()}
        turns = in_turns(runs, rounds)
        notes = [memory_of(systems[FAST])]
    if not nginx.is_installed():
        notes.append("nginx with Lua is missing: `make install-system` installs it")
    show("Hits: one worker on one core", table_of(turns), *notes)


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
    return start(stack, {what: systems[what] for what in ways or systems}, bodies)


def start(
    stack: ExitStack, systems: Mapping[str, System], bodies: list[bytes]
) -> dict[str, System]:
    """Start systems, pin each worker to the measured core, and cache the answers to `bodies`."""
    for system in systems.values():
        stack.enter_context(system)
        fill(system, bodies)
        give_core(system, "gateway")
    return dict(systems)


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
