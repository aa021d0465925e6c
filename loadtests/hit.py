"""Measures a worker's cache hits per second, beside rivals and a server without logic.

Servers are measured in turns; the measured one has a core, and everything else the other one.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests import wrk
from loadtests.generator import Target
from loadtests.harness.ports import free_port
from loadtests.harness.system import System
from loadtests.harness.waiting import wait_until
from loadtests.machine import busy_seconds, pin, resident_mib, this_machine
from loadtests.report import Row, show
from loadtests.rivals import nginx
from loadtests.workload import sentences

_ROOT = Path(__file__).parents[1]
_TEXTS = 100
SERVER, OTHERS = 0, 1
_PATH = "/v1/classify"
_LATER = ("shipper", "billing", "request-log")
_MISSING = "not measured: nginx with Lua is missing (`make install-system`)"


def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure hits by tier and entry point in turns with their rivals, and print the table."""
    if not wrk.is_installed():
        sys.exit("`wrk` is needed; `make install-system` installs it")
    texts = sentences(_TEXTS, seed=1)
    bodies = [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]
    measured: dict[str, list[wrk.WrkResult]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = start_systems(stack, root, bodies)
        targets = {"bare uvicorn, which does nothing": bare_server(stack, length=330)}
        targets |= {what: target_of(system) for what, system in systems.items()}
        if nginx.is_installed():
            targets |= _rivals(stack, root, texts, answer=_answer(systems, bodies[0]))
        for _ in range(rounds):
            for what, target in targets.items():
                sent = wrk.send(
                    target,
                    bodies,
                    connections=connections,
                    duration=duration,
                    core=OTHERS,
                    folder=root,
                )
                measured.setdefault(what, []).append(sent)
                settle(systems.values())
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


def _rivals(stack: ExitStack, root: Path, texts: list[str], *, answer: str) -> dict[str, Target]:
    redis_port, redis = stack.enter_context(nginx.filled_valkey(texts, answer=answer))
    pin([redis], OTHERS)
    targets = {}
    for kind in ("redis", "memory"):
        port, process = stack.enter_context(
            nginx.nginx(kind, root / f"nginx-{kind}", texts, answer=answer, redis_port=redis_port)
        )
        pin([process], SERVER)
        headers = (("authorization", f"Bearer {nginx.KEY}"),)
        target = Target(host="127.0.0.1", port=port, path=_PATH, headers=headers)
        targets[f"nginx + Lua, cache in {kind.replace('redis', 'Redis')}"] = target
    return targets


def _rows(measured: dict[str, list[wrk.WrkResult]]) -> list[Row]:
    """Return the median run of each; ratios are to the first."""
    medians = {
        what: sorted(runs, key=lambda run: run.rate)[len(runs) // 2]
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


def _answer(systems: dict[str, System], body: bytes) -> str:
    """Return an answer as the product gives it, for rivals to send the like."""
    with next(iter(systems.values())).client() as client:
        return client.post(_PATH, content=body).text


def _without_memory_tier(root: Path) -> Path:
    config = Path(shutil.copytree(_ROOT / "config", root / "config"))
    document = config / "gateway.yaml"
    text = document.read_text()
    document.write_text(text.replace("cache:\n", "cache:\n  memory_enabled: false\n", 1))
    return config


def bare_server(stack: ExitStack, *, length: int, core: int = SERVER) -> Target:
    """Start a server that sends `length` bytes, whatever it is asked."""
    port = stack.enter_context(_bare(length, core))
    return Target(host="127.0.0.1", port=port, path="/")


@contextlib.contextmanager
def _bare(length: int, core: int) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "loadtests.bare_server", str(port), str(length)]
    child = subprocess.Popen(command, cwd=_ROOT)
    try:
        wait_until(lambda: _answers(port), within=10, what="the bare server answers")
        pin([child.pid], core)
        yield port
    finally:
        child.terminate()
        child.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").is_success
    except httpx.TransportError:
        return False
