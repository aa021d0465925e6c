"""Measures what a running batch does to other requests: their p95 beside it, and without it.

The process that runs the batch is stopped and goes on in turns.
"""

import asyncio
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click
import httpx
import msgspec

from loadtests.faults.batch import create_batch, lines_done
from loadtests.faults.model import MODEL, PATH, texts, write_revision
from loadtests.generator import Target
from loadtests.machine import this_machine
from loadtests.open_loop import open_loop
from loadtests.options import rounds
from loadtests.paired_latency import LatencyRound, p95, pair
from testing.system import System
from testing.waiting import wait_until

_RATE = 20.0
_WINDOW = 4.0
"""Seconds of a load that is compared."""
_DRAINED = 0.5
"""Seconds in which the work that is under way ends, once no more comes."""
_BOUND = 1.2
"""What p95 beside the batch may be, times that alone."""
_PACED = {
    "SLUICEGATE_BATCHES": "true",
    # A process that is stopped for a while is not to be replaced.
    "SLUICEGATE_HEARTBEAT_TIMEOUT": "0",
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_THREADS": "1",
    "SLUICEGATE_BACKEND_PACED_BASE": "2e-3",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "2e-5",
}


@click.command()
@click.option("--lines", default=100_000, help="Lines of the batch.")
@rounds(6)
def measure(*, lines: int, rounds: int) -> None:
    """Print the latencies beside a batch of `lines`; fail where its p95 is over the bound.

    Where the controls differ by more than the bound, nothing is said of it.
    """
    with tempfile.TemporaryDirectory(prefix="sluicegate-batches-") as name:
        folder = Path(name)
        write_revision(folder / "models", 1)
        config = folder / "config"
        config.mkdir()
        plenty = [{"name": "plenty", "unit": "requests", "capacity": 10**9, "window": 1}]
        # JSON is YAML.
        (config / "gateway.yaml").write_bytes(msgspec.json.encode({"limits": {"tenant": plenty}}))
        system = System(
            folder / "data", models=folder / "models", config=config, environment=_PACED
        )
        with system, system.client() as client:
            more = (_body(text) for text in texts(2))
            _latencies(system, more, 2.0)  # what starts late has started then
            batch = create_batch(client, list(islice(texts(1), lines)))
            wait_until(lambda: lines_done(client, batch) > 0, within=60.0, what="the batch runs")
            found = pair([_round(system, more) for _ in range(rounds)])
    print(this_machine())
    for name, value in msgspec.structs.asdict(found).items():
        print(f"{name:>14} {value:,.2f}")
    if found.ratio > _BOUND > found.control:
        raise SystemExit(f"p95 beside the batch is more than {_BOUND} times that alone")


def _round(system: System, bodies: Iterator[bytes]) -> LatencyRound:
    """Return latencies while the batch stands still, while it runs, and so again."""
    with _paused(system):
        before = _latencies(system, bodies, _WINDOW)
    beside = _latencies(system, bodies, _WINDOW)
    with _paused(system):
        after = _latencies(system, bodies, _WINDOW)
    print(f"p95 {p95(before):.1f}, beside {p95(beside):.1f}, {p95(after):.1f} ms")
    return LatencyRound(before=before, beside=beside, after=after)


@contextmanager
def _paused(system: System) -> Iterator[None]:
    (process,) = system.processes("batches")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(_DRAINED)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _latencies(system: System, bodies: Iterator[bytes], seconds: float) -> list[float]:
    """Return milliseconds of new texts that somebody waits for; refused: infinite."""
    headers = (("authorization", f"Bearer {system.key}"),)
    target = Target(host="127.0.0.1", port=system.port, path=PATH, headers=headers)
    found = asyncio.run(open_loop(target, bodies, rate=_RATE, duration=seconds, connections=4))
    return [
        answer.latency * 1000 if answer.status == httpx.codes.OK else math.inf for answer in found
    ]


def _body(text: str) -> bytes:
    return msgspec.json.encode({"model": MODEL, "input": text})
