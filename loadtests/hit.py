"""How many answers a worker gives from the cache, beside a server that does nothing at all."""

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from loadtests.generator import Outcome, Target, closed_loop
from loadtests.machine import pin, resident_mib, this_machine
from loadtests.report import rows, show
from loadtests.workload import cycle, sentences
from tests.support.system import System, free_port, until

_ROOT = Path(__file__).parents[1]
_TEXTS = 100
_SERVER, _OTHERS = 0, 1


def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure memory hits and Redis hits in turns with the bare server, and print the table."""
    bodies = [
        msgspec.json.encode({"model": "sentiment", "input": text})
        for text in sentences(_TEXTS, seed=1)
    ]
    measured: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        without_memory = _without_memory_tier(root)
        with (
            System(root / "memory", models=root / "models") as memory,
            System(root / "redis", models=root / "models", config=without_memory) as redis,
            _bare_server(length=330) as bare,
        ):
            targets = {"bare uvicorn": Target(host="127.0.0.1", port=bare, path="/")}
            targets |= {"memory hit": _target(memory), "Redis hit": _target(redis)}
            for system in (memory, redis):
                _fill(system, bodies)
                pin((p.pid for p in system.processes() if p.role != "gateway"), _OTHERS)
                pin((p.pid for p in system.processes("gateway")), _SERVER)
            pin([os.getpid()], _OTHERS)
            for _, (what, target) in itertools.product(range(rounds), targets.items()):
                run = closed_loop(target, cycle(bodies), connections=connections, duration=duration)
                measured.setdefault(what, []).append(asyncio.run(run))
            used = {
                f"{process.role} {process.region or process.index}": resident_mib(process.pid)
                for process in memory.processes()
            }
    show("Hits: one worker on one core", rows(measured), used, this_machine())


def _target(system: System) -> Target:
    headers = (("authorization", f"Bearer {system.key}"),)
    return Target(host="127.0.0.1", port=system.port, path="/v1/classify", headers=headers)


def _fill(system: System, bodies: list[bytes]) -> None:
    """Ask everything twice, so that what is asked later is in the cache."""
    with system.client() as client:
        for body in [*bodies, *bodies]:
            client.post("/v1/classify", content=body).raise_for_status()


def _without_memory_tier(root: Path) -> Path:
    config = Path(shutil.copytree(_ROOT / "config", root / "config"))
    document = config / "gateway.yaml"
    text = document.read_text()
    document.write_text(text.replace("cache:\n", "cache:\n  memory_enabled: false\n", 1))
    return config


@contextlib.contextmanager
def _bare_server(*, length: int) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "loadtests.bare_server", str(port), str(length)]
    child = subprocess.Popen(command, cwd=_ROOT)
    try:
        until(lambda: _answers(port), within=10, what="the bare server answers")
        pin([child.pid], _SERVER)
        yield port
    finally:
        child.terminate()
        child.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").is_success
    except httpx.TransportError:
        return False
