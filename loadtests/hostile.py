"""Measures the latency of a model while hostile algorithms run in the same backend."""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count

import click
import httpx

from backends.protocol import (
    CALL_PATH,
    Done,
    Failed,
    FrameReader,
    InferParameters,
    ModelInfo,
    Task,
)
from loadtests.backend import RunningBackend, backend, call, calls
from loadtests.demo import demo_models
from loadtests.generator import percentile
from loadtests.machine import this_machine
from loadtests.open_loop import Answer, run_open
from loadtests.options import rounds
from loadtests.workload import sentences
from testing.hostile_algorithms import HARM, HEAD, IMPORTS, write_algorithm
from testing.loopback import get, no_authorities

_MODEL = "sentiment"
_TIME = 2.0
"""Seconds that an item of a hostile algorithm has."""
_BETWEEN = 0.25
"""Seconds between two harmful items of an algorithm."""
_LOST = re.compile(r'lost_algorithm_hosts_total{model="(.*)",reason="(.*)"} (\d+)')


@click.command()
@click.option("--rate", default=100.0, help="Requests a second.")
@click.option("--seconds", default=10.0, help="Of each run.")
@rounds(3)
def measure(*, rate: float, seconds: float, rounds: int) -> None:
    """Ask a model at `rate` a second, in turns without harm and beside all hostile algorithms.

    Each algorithm gets one harmful item after another, none twice.
    """
    alone: list[Answer] = []
    beside: list[Answer] = []
    with demo_models() as models:
        for name, harm in HARM.items():
            text = f"{HEAD}    {harm.strip()}\n".replace('"mood"', f'"{_MODEL}"')
            write_algorithm(models, name, text, time=_TIME, uses=_MODEL)
        for name, text in IMPORTS.items():
            write_algorithm(models, name, text, import_time=1.0, uses=_MODEL)
        with backend(models) as running:
            seeds = count(1000)
            run = partial(_answers, running, rate=rate, seconds=seconds)
            run(seed=next(seeds))  # warm
            for _ in range(rounds):
                alone += _shown("alone", run(seed=next(seeds)))
                with _harm(running) as harmed:
                    beside += _shown("beside hostile algorithms", run(seed=next(seeds)))
                print(f"harmful items ended: {sum(harmed.values())} {dict(harmed)}", flush=True)
            page = get(f"{running.url}/metrics").text
    ratio = _p95(beside) / _p95(alone)
    print(
        f"p95 of all: {_p95(alone) * 1e3:.1f} ms alone, {_p95(beside) * 1e3:.1f} ms beside them: "
    )
    print(f"{ratio:.2f} times (aim: 2)")
    print("processes lost:", ", ".join(f"{n} {m} {r}" for m, r, n in _LOST.findall(page)))
    print(this_machine().headline)


def _answers(running: RunningBackend, *, rate: float, seconds: float, seed: int) -> list[Answer]:
    texts = iter(sentences(int(rate * seconds * 2), seed=seed))
    bodies = calls(texts, running.model(_MODEL))
    return run_open(running.target, bodies, rate=rate, duration=seconds)


@contextlib.contextmanager
def _harm(running: RunningBackend) -> Iterator[Counter[str]]:
    """Send harmful items to every algorithm until the block ends; count how they ended."""
    ended: Counter[str] = Counter()
    is_over = threading.Event()
    threads = [
        threading.Thread(target=_send, args=(running.port, running.model(name), is_over, ended))
        for name in HARM
    ]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _send(port: int, info: ModelInfo, is_over: threading.Event, ended: Counter[str]) -> None:
    base = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=base, verify=no_authorities(), timeout=60) as client:
        for number in count():
            if is_over.wait(_BETWEEN):
                return
            harm = f"harm {id(is_over)} {number}"
            content = call(
                [harm], info, task=Task.INFER, parameters=InferParameters(), remaining=20.0
            )
            answer = client.post(CALL_PATH, content=content)
            for frame in FrameReader().feed(answer.content):
                if isinstance(frame, Done | Failed):
                    ended[frame.code if isinstance(frame, Failed) else "answered"] += 1


def _shown(what: str, answers: list[Answer]) -> list[Answer]:
    statuses = dict(Counter(answer.status for answer in answers))
    print(f"{what}: p95 {_p95(answers) * 1e3:.1f} ms, {statuses}", flush=True)
    return answers


def _p95(answers: list[Answer]) -> float:
    return percentile(sorted(answer.latency for answer in answers), 0.95)
