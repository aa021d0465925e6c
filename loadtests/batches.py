"""Measures how much a running batch job slows other requests: their p95 with the job and without.

The process that runs the batch job is alternately paused and resumed. Each round has two
measurements without the job. These two are the control. If the p95 with the job differs from the
p95 without the job by less than the two controls differ from each other, the difference is noise.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median

import click
import msgspec

from loadtests.faults.batch import create_batch, lines_done
from loadtests.faults.model import MODEL, PATH, texts, write_revision
from loadtests.generator import Outcome
from loadtests.measured import metered, target_of
from loadtests.open_loop import open_loop, outcome
from loadtests.options import rounds
from loadtests.report import show, table_of
from loadtests.turns import in_turns, paired
from testing.system import System
from testing.waiting import wait_until

_RATE = 20.0
_WINDOW = 4.0
"""Seconds of each measured load."""
_DRAINED = 0.5
"""Seconds in which the lines in flight end, after the process that runs the batch job is paused."""
_BOUND = 1.2
"""The highest allowed p95 beside the batch job, as a multiple of the p95 without the job."""
_PACED = {
    "SLUICEGATE_BATCHES": "true",
    # The supervisor must not replace a process that the benchmark pauses.
    "SLUICEGATE_HEARTBEAT_TIMEOUT": "0",
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_THREADS": "1",
    "SLUICEGATE_BACKEND_PACED_BASE": "2e-3",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "2e-5",
}


@click.command()
@click.option("--lines", default=100_000, help="Lines of the batch job's file.")
@rounds(6)
def measure(*, lines: int, rounds: int) -> None:
    """Measure a batch job of `lines`; fail if the p95 of other requests exceeds the bound.

    If the p95 values of the two controls differ by more than the bound, the measurement is too
    noisy to judge. Then the command fails only if requests failed.
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
            more = (msgspec.json.encode({"model": MODEL, "input": text}) for text in texts(2))

            def beside(seconds: float = _WINDOW) -> Outcome:
                target = target_of(system, PATH)
                load = open_loop(target, more, rate=_RATE, duration=seconds, connections=4)
                return outcome(asyncio.run(load), seconds)

            def alone() -> Outcome:
                with _paused(system):
                    return beside()

            beside(2.0)  # by then, everything that starts late has started
            batch = create_batch(client, list(islice(texts(1), lines)))
            wait_until(lambda: lines_done(client, batch) > 0, within=60.0, what="the batch runs")
            runs = {"alone": alone, "beside the batch": beside, "alone again": alone}
            turns = in_turns({what: metered(run) for what, run in runs.items()}, rounds)
    before, during, after = (
        [run.outcome.percentile(0.95) for run in each] for each in turns.values()
    )
    ratio = paired(during, [(one + other) / 2 for one, other in zip(before, after, strict=True)])
    control = median(max(a / b, b / a) for a, b in zip(before, after, strict=True))
    show(
        "Requests beside a batch",
        table_of(turns),
        f"The p95 beside the batch is {ratio:.2f} times that alone; control {control:.2f}.",
    )
    failed = sum(run.outcome.failed for each in turns.values() for run in each)
    if failed or ratio > _BOUND > control:
        raise SystemExit(
            f"{failed} requests failed, or p95 beside the batch is over {_BOUND} times that alone"
        )


@contextmanager
def _paused(system: System) -> Iterator[None]:
    (process,) = system.processes("batches")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(_DRAINED)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)
