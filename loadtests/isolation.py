"""Measures how other work slows a model's requests: a batch job, hostile algorithms, a busy model.

Each round of `batches` and `hostile` measures the same load with and without the other work.
"""

import asyncio
import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from statistics import median

import click
import httpx
import msgspec

from loadtests.backend import RunningBackend, backend, call, calls
from loadtests.faults.batch import create_batch, lines_done
from loadtests.faults.model import MODEL, PATH, texts, write_revision
from loadtests.gateway import WIDE_LIMITS
from loadtests.generator import Outcome, run_closed
from loadtests.machine import pin
from loadtests.measured import demo_models, metered, target_of
from loadtests.models import copy_model
from loadtests.open_loop import open_loop, outcome, run_open
from loadtests.options import rounds
from loadtests.report import Line, show, table_of
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from sluicegate.wire.protocol import CALL_PATH, Done, Failed, FrameReader, ModelInfo, Task
from testing.hostile_algorithms import HARM, HEAD, IMPORTS, write_algorithm
from testing.loopback import get, no_authorities
from testing.system import System
from testing.waiting import wait_until

_RATE, _WINDOW = 20.0, 4.0
"""Requests a second beside a batch job, and seconds of each measured load."""
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
_MODEL = "sentiment"
_TIME = 2.0
"""The seconds that an item of a hostile algorithm may take."""
_BETWEEN = 0.25
"""Seconds between two harmful items of an algorithm."""
_LOST = re.compile(r'lost_algorithm_hosts_total{model="(.*)",reason="(.*)"} (\d+)')
_BACKEND, _GENERATOR = 1, 0
_BUSY = 10
"""Calls of the busy model for each call of the other model."""
_OVERLOAD, _DEADLINE = 1.3, 0.5
"""The load of a shared device in multiples of its capacity, and the seconds that a caller waits."""
_FOLLOW = 10.0
"""Seconds within which shares must follow a change of the load."""
_ENCODERS = ("minilm", "minilm-twin")


@click.command("batches")
@click.option("--lines", default=100_000, help="Lines of the batch job's file.")
@rounds(6)
def measure_batches(*, lines: int, rounds: int) -> None:
    """Measure how much a batch job slows other requests; fail if their p95 exceeds the bound.

    The process that runs the batch job is alternately paused and resumed. Each round has two
    measurements without the job, the control. If the p95 values of the control differ by more than
    the bound, the measurement is too noisy to judge, and the command fails only if requests failed.
    """
    with tempfile.TemporaryDirectory(prefix="sluicegate-batches-") as name:
        folder = Path(name)
        write_revision(folder / "models", 1)
        config = folder / "config"
        config.mkdir()
        # JSON is YAML.
        (config / "gateway.yaml").write_bytes(msgspec.json.encode({"limits": WIDE_LIMITS}))
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


@contextlib.contextmanager
def _paused(system: System) -> Iterator[None]:
    (process,) = system.processes("batches")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(_DRAINED)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@click.command("hostile")
@click.option("--rate", default=100.0, help="Requests a second.")
@click.option("--seconds", default=10.0, help="Length of each run.")
@rounds(3)
def measure_hostile(*, rate: float, seconds: float, rounds: int) -> None:
    """Measure the latency of a model while hostile algorithms run in the same backend.

    Each hostile algorithm gets one harmful item after another, and never the same item twice.
    """
    ended: Counter[str] = Counter()
    with demo_models() as models:
        for name, harm in HARM.items():
            text = f"{HEAD}    {harm.strip()}\n".replace('"mood"', f'"{_MODEL}"')
            write_algorithm(models, name, text, time=_TIME, uses=_MODEL)
        for name, text in IMPORTS.items():
            write_algorithm(models, name, text, import_time=1.0, uses=_MODEL)
        with backend(models) as running:
            seeds = count(1000)

            def alone() -> Outcome:
                texts = sentences(int(rate * seconds * 2), seed=next(seeds))
                bodies = calls(texts, running.model(_MODEL))
                answers = run_open(running.target, bodies, rate=rate, duration=seconds)
                return outcome(answers, seconds)

            def beside() -> Outcome:
                with _harm(running, ended):
                    return alone()

            alone()  # warm up
            variants = {"alone": metered(alone), "beside hostile algorithms": metered(beside)}
            turns = in_turns(variants, rounds)
            page = get(f"{running.url}/metrics").text
    quiet, harmed = ([run.outcome.percentile(0.95) for run in each] for each in turns.values())
    lost = ", ".join(f"{number} {model} {why}" for model, why, number in _LOST.findall(page))
    show(
        "Hostile algorithms",
        table_of(turns),
        f"The p95 beside them is {paired(harmed, quiet):.2f} times that alone (aim: 2).",
        f"Harmful items ended: {dict(ended)}.",
        f"Processes lost: {lost}.",
    )


@contextlib.contextmanager
def _harm(running: RunningBackend, ended: Counter[str]) -> Iterator[None]:
    """Send harmful items to every algorithm while entered; count how the items ended."""
    is_over = threading.Event()
    with ThreadPoolExecutor(len(HARM)) as pool:
        sending = [
            pool.submit(_send_harm, running.url, running.model(name), is_over, ended)
            for name in HARM
        ]
        try:
            yield
        finally:
            is_over.set()
    for each in sending:
        each.result()


def _send_harm(url: str, info: ModelInfo, is_over: threading.Event, ended: Counter[str]) -> None:
    with httpx.Client(base_url=url, verify=no_authorities(), timeout=60) as client:
        for number in count():
            if is_over.wait(_BETWEEN):
                return
            harm = f"harm {id(is_over)} {number}"
            content = call([harm], info, task=Task.INFER, remaining=20.0)
            answer = client.post(CALL_PATH, content=content)
            for frame in FrameReader().feed(answer.content):
                if isinstance(frame, Done | Failed):
                    ended[frame.code if isinstance(frame, Failed) else "answered"] += 1


@click.command("shares")
@click.option("--phase", default=30.0, help="Seconds before the swap, and after it.")
def measure_shares(*, phase: float) -> None:
    """Measure how two models of equal cost share a saturated device.

    Callers send ten calls of one model for each call of the other, and after `phase` seconds the
    other way round. The device seconds of each model are read in the second half of both phases.
    """
    with demo_models() as models:
        # So that two encoders compete.
        copy_model(models, "minilm", "minilm-twin")
        copy_model(models, _MODEL, f"{_MODEL}-twin", encoder="minilm-twin")
        with backend(models, threads="1") as running:
            pin([running.pid], _BACKEND)
            pin([os.getpid()], _GENERATOR)
            first, second = (
                calls(sentences(150_000, seed=seed), running.model(name), remaining=_DEADLINE)
                for seed, name in ((7, _MODEL), (8, f"{_MODEL}-twin"))
            )
            mixture = _mixed(first, second)
            able = run_closed(running.target, mixture, duration=5.0).rate
            rate = _OVERLOAD * able
            bodies = _swapped(first, second, round(rate * phase))
            lines = asyncio.run(_shares(running, bodies, rate=rate, phase=phase))
    title = f"Shares of a device: ten to one, {_OVERLOAD:.1f} times the capacity of {able:.0f}/s"
    show(title, lines)


async def _shares(
    running: RunningBackend, bodies: Iterator[bytes], *, rate: float, phase: float
) -> list[Line]:
    """Run an open loop, and return the ratio of device seconds in both phases."""
    load = open_loop(running.target, bodies, rate=rate, duration=2 * phase)
    sending = asyncio.create_task(load)
    lines: list[Line] = []
    follow = min(_FOLLOW, phase / 2)
    for what in ("before the swap", "after the swap"):
        await asyncio.sleep(follow)
        begun = await asyncio.to_thread(_used, running)
        await asyncio.sleep(phase - follow)
        ended = await asyncio.to_thread(_used, running)
        one, other = (now - then for now, then in zip(ended, begun, strict=True))
        lines.append({"phase": what, "to 1": one / other, "1 to": other / one})
    found = outcome(await sending, 2 * phase)
    print(f"{found.rate:.0f}/s answered or refused: {found.statuses}")
    return lines


def _used(running: RunningBackend) -> list[float]:
    return [running.counter("busy_seconds_total", encoder) for encoder in _ENCODERS]


def _mixed(busy: Iterator[bytes], other: Iterator[bytes]) -> Iterator[bytes]:
    """Yield ten calls of `busy` for each call of `other`."""
    while True:
        yield from islice(busy, _BUSY)
        yield next(other)


def _swapped(first: Iterator[bytes], second: Iterator[bytes], count: int) -> Iterator[bytes]:
    """Yield `count` calls, ten of `first` for each of `second`; then go on with roles swapped."""
    yield from islice(_mixed(first, second), count)
    yield from _mixed(second, first)
