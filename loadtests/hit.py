"""Measures a worker's cache hits, beside rivals and a server without logic.

Servers are measured in turns; the measured one has a core, and everything else the other one.
Beside the rates stands the processor time of a request: of the server, of all that it needs (Redis,
the processes of events until a request is billed), and of the load generator.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.generator import Target
from loadtests.machine import busy_seconds, pin, processor_seconds, resident_mib, this_machine
from loadtests.options import connections, duration, rounds
from loadtests.report import Costs, Row, show
from loadtests.rivals import nginx
from loadtests.workload import sentences
from testing.ports import free_port
from testing.system import System
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_TEXTS = 100
SERVER, OTHERS = 0, 1
_PATH = "/v1/classify"
_LATER = ("shipper", "billing", "request-log")
_NEEDED = (*_LATER, "valkey-cache", "valkey-state")
_MISSING = "not measured: nginx with Lua is missing (`make install-system`)"


class Candidate(NamedTuple):
    """A server to measure, with the processes that it needs beside it."""

    target: Target
    server: list[int]
    others: list[int]


class Run(NamedTuple):
    """A run of one server: what the load generator saw, and what a request cost."""

    sent: wrk.WrkResult
    costs: Costs


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure hits by tier and entry point in turns with their rivals, and print the table."""
    if not wrk.is_installed():
        sys.exit("`wrk` is needed; `make install-system` installs it")
    texts = sentences(_TEXTS, seed=1)
    bodies = [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]
    measured: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = start_systems(stack, root, bodies)
        candidates = {"bare uvicorn, which does nothing": _bare_candidate(stack, length=330)}
        candidates |= {what: _candidate(system) for what, system in systems.items()}
        if nginx.is_installed():
            candidates |= rivals(stack, root, texts, answer=answer_of(systems, bodies[0]))
        for _ in range(rounds):
            for what, candidate in candidates.items():
                before = _used(candidate.server), _used(candidate.others)
                sent = wrk.send(
                    candidate.target,
                    bodies,
                    connections=connections,
                    duration=duration,
                    core=OTHERS,
                    folder=root,
                )
                server = _used(candidate.server)
                settle(systems.values())
                costs = _costs(sent, before, (server, _used(candidate.others)))
                measured.setdefault(what, []).append(Run(sent, costs))
        used = {
            f"{process.role} {process.region or process.index}": resident_mib(process.pid)
            for process in next(iter(systems.values())).processes()
        }
    table = _rows(measured)
    if not nginx.is_installed():
        table += [Row(what=f"nginx + Lua, {_MISSING}", rate=0, ratio=0)]
    show("Hits: one worker on one core", table, used, this_machine())


def start_systems(
    stack: ExitStack, root: Path, bodies: list[bytes], *, ways: Sequence[str] = ()
) -> dict[str, System]:
    """Start the product once for each way to a hit (or those named), filled and pinned."""
    models = root / "models"
    build_demo_models(models, print)
    without_memory = _without_memory_tier(root)
    off = {"SLUICEGATE_FAST_LANE": "false"}
    systems = {
        "memory hit, fast path": System(root / "fast", models=models),
        "memory hit, application": System(root / "application", models=models, environment=off),
        "Redis hit (memory tier off)": System(root / "redis", models=models, config=without_memory),
    }
    if ways:
        systems = {what: systems[what] for what in ways}
    for system in systems.values():
        stack.enter_context(system)
        fill(system, bodies)
        pin((p.pid for p in system.processes() if p.role != "gateway"), OTHERS)
        pin((p.pid for p in system.processes("gateway")), SERVER)
    return systems


def settle(systems: Iterable[System]) -> None:
    """Wait until what the last run left to ship and to bill is done: the next has a core to use."""
    processes = [p.pid for system in systems for p in system.processes() if p.role in _LATER]
    seen = [sum(map(busy_seconds, processes))]

    def is_quiet() -> bool:
        used = sum(map(busy_seconds, processes))
        rests = used - seen[0] < 0.03
        seen[0] = used
        time.sleep(0.5)
        return rests

    time.sleep(0.5)
    wait_until(is_quiet, within=60, what="events are billed")


def _used(processes: list[int]) -> float:
    return sum(map(processor_seconds, processes))


def _costs(sent: wrk.WrkResult, before: tuple[float, float], used: tuple[float, float]) -> Costs:
    server, others = (1e6 * (b - a) / sent.requests for a, b in zip(before, used, strict=True))
    generator = 1e6 * sent.processor / sent.requests
    return Costs(server=server, others=others, generator=generator)


def _candidate(system: System) -> Candidate:
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
        target = Target(host="127.0.0.1", port=port, path=_PATH, headers=headers)
        what = f"nginx + Lua, cache in {kind.replace('redis', 'Redis')}"
        candidates[what] = Candidate(target, [process], [redis] if kind == "redis" else [])
    return candidates


def _rows(measured: dict[str, list[Run]]) -> list[Row]:
    """Return the median run of each by rate, and the medians of costs; ratios are to the first."""
    medians = {
        what: sorted((run.sent for run in runs), key=lambda sent: sent.rate)[len(runs) // 2]
        for what, runs in measured.items()
    }
    baseline = next(iter(medians.values())).rate
    return [
        Row(
            what=what,
            rate=round(run.rate, 1),
            ratio=round(run.rate / baseline, 3),
            p50=round(run.p50 * 1000, 2),
            p99=round(run.p99 * 1000, 2),
            statuses={200: run.requests - run.refused, 0: run.refused + run.broken},
            costs=Costs(
                server=median(run.costs.server for run in measured[what]),
                others=median(run.costs.others for run in measured[what]),
                generator=median(run.costs.generator for run in measured[what]),
            ),
        )
        for what, run in medians.items()
    ]


def target_of(system: System) -> Target:
    """Return where the demo tenant sends its requests."""
    headers = (("authorization", f"Bearer {system.key}"),)
    return Target(host="127.0.0.1", port=system.port, path=_PATH, headers=headers)


def fill(system: System, bodies: list[bytes]) -> None:
    """Ask everything twice, so that what is asked later is in the cache."""
    with system.client() as client:
        for body in [*bodies, *bodies]:
            client.post(_PATH, content=body).raise_for_status()


def answer_of(systems: dict[str, System], body: bytes) -> str:
    """Return an answer as the product gives it, for rivals to send the like."""
    with next(iter(systems.values())).client() as client:
        return client.post(_PATH, content=body).text


def _without_memory_tier(root: Path) -> Path:
    config = Path(shutil.copytree(_ROOT / "config", root / "config"))
    document = config / "gateway.yaml"
    text = document.read_text()
    document.write_text(text.replace("cache:\n", "cache:\n  memory_enabled: false\n", 1))
    return config


def bare_server(
    stack: ExitStack, *, length: int, core: int = SERVER, status: int = 200, delay: float = 0.0
) -> Target:
    """Start a server that sends `length` bytes, whatever it is asked."""
    port, _ = stack.enter_context(_bare(core, str(length), str(status), str(delay)))
    return Target(host="127.0.0.1", port=port, path="/")


def _bare_candidate(stack: ExitStack, *, length: int) -> Candidate:
    port, process = stack.enter_context(_bare(SERVER, str(length)))
    return Candidate(Target(host="127.0.0.1", port=port, path="/"), [process], [])


@contextlib.contextmanager
def _bare(core: int, *arguments: str) -> Iterator[tuple[int, int]]:
    port = free_port()
    command = [sys.executable, "-m", "loadtests.bare_server", str(port), *arguments]
    child = subprocess.Popen(command, cwd=_ROOT)
    try:
        wait_until(lambda: _listens(port), within=60, what="the bare server listens")
        pin([child.pid], core)
        yield port, child.pid
    finally:
        child.terminate()
        child.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
