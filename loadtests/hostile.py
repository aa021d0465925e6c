"""Measures the latency of a model while hostile algorithms run in the same backend."""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count

import click
import httpx

from loadtests.backend import RunningBackend, backend, call, calls
from loadtests.generator import Outcome
from loadtests.measured import demo_models, metered
from loadtests.open_loop import outcome, run_open
from loadtests.options import rounds
from loadtests.report import show, table_of
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from testing.hostile_algorithms import HARM, HEAD, IMPORTS, write_algorithm
from testing.loopback import get, no_authorities
from wire.protocol import CALL_PATH, Done, Failed, FrameReader, InferParameters, ModelInfo, Task

_MODEL = "sentiment"
_TIME = 2.0
"""The seconds that an item of a hostile algorithm may take."""
_BETWEEN = 0.25
"""Seconds between two harmful items of an algorithm."""
_LOST = re.compile(r'lost_algorithm_hosts_total{model="(.*)",reason="(.*)"} (\d+)')


@click.command()
@click.option("--rate", default=100.0, help="Requests a second.")
@click.option("--seconds", default=10.0, help="Length of each run.")
@rounds(3)
def measure(*, rate: float, seconds: float, rounds: int) -> None:
    """Send `rate` requests a second to a model, alternately with and without hostile algorithms.

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
                texts = iter(sentences(int(rate * seconds * 2), seed=next(seeds)))
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
    harmed, quiet = (
        [run.outcome.percentile(0.95) for run in turns[what]]
        for what in ("beside hostile algorithms", "alone")
    )
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
    threads = [
        threading.Thread(target=_send, args=(running.url, running.model(name), is_over, ended))
        for name in HARM
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _send(url: str, info: ModelInfo, is_over: threading.Event, ended: Counter[str]) -> None:
    with httpx.Client(base_url=url, verify=no_authorities(), timeout=60) as client:
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
