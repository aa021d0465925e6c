"""Measures how a backend makes batches: of mixed lengths, and by how many threads."""

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click

from loadtests.backend import RunningBackend, backend, calls
from loadtests.generator import OK, Answer, Outcome, run_closed
from loadtests.measured import demo_models, metered
from loadtests.models import write_padded
from loadtests.open_loop import outcome, run_open
from loadtests.options import duration, rounds
from loadtests.report import Line, Turn, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from sluicegate.wire.protocol import Done, FrameReader

_ENCODER, _MODEL = "minilm", "sentiment"
_LONG_SHARE = 0.05
_LONG = 256  # tokens: the most that the demo encoder reads
_OFFERED = 0.7
_TIMEOUT = 2.0  # seconds that a caller waits; no item is queued for so long
# A common setup of batchers: up to 32 rows, and no bound on tokens.
_ARRIVAL = {"batch_order": "arrival", "max_batch_rows": "32", "max_batch_tokens": "65536"}
_THREADS = {"narrow": "never", "wide": "always", "adaptive": "auto"}


@click.command("mixed")
@duration(10.0)
@rounds(5)
def measure_mixed(*, duration: float, rounds: int) -> None:
    """Measure short sentences among long documents, with batches by length and by arrival.

    The load is 0.7 of the capacity with batches in order of arrival. The capacity is the rate of 32
    callers who each wait for an answer before the next request.
    """
    with demo_models() as models:
        exported = Path(shutil.copytree(models, models.parent / "exported"))
        write_padded(exported / _ENCODER / "1" / "model.onnx")
        with backend(exported, **_ARRIVAL) as running:
            bodies = _warm(running, seed=99)
            able = run_closed(running.target, bodies, duration=duration).rate
        rate = _OFFERED * able
        # Batches by length and by arrival get the same texts.
        seeds = (seed for seed in itertools.count() for _ in range(2))
        run = partial(_run_mixed, seeds, rate=rate, duration=duration)
        variants = {
            "by length": metered(partial(run, models)),
            "by arrival, padded": metered(partial(run, exported, **_ARRIVAL)),
        }
        turns = in_turns(variants, rounds)
    title = f"Mixed lengths: {rate:.0f} requests a second offered, answers to short ones"
    show(title, table_of(turns))


def _mixed(*, seed: int) -> Iterator[str]:
    """Yield distinct sentences.

    A document of 256 or more tokens comes before one sentence in twenty.
    """
    chooser = random.Random(seed)
    short = iter(sentences(200_000, seed=seed))
    for text in short:
        if chooser.random() < _LONG_SHARE:
            yield " ".join(itertools.islice(short, _LONG // 4))
        yield text


def _run_mixed(
    seeds: Iterator[int], models: Path, *, rate: float, duration: float, **settings: str
) -> Outcome:
    """Send the mixed texts; return the outcome of the short texts only."""
    with backend(models, **settings) as running:
        bodies = _warm(running, seed=next(seeds))
        answers = run_open(running.target, bodies, rate=rate, duration=duration)
    return outcome([answer for answer in answers if 0 < _tokens(answer) < _LONG], duration)


def _warm(running: RunningBackend, *, seed: int) -> Iterator[bytes]:
    """Return the calls of a seed, after the backend has answered the first hundred."""
    bodies = calls(_mixed(seed=seed), running.model(_MODEL), remaining=_TIMEOUT)
    run_closed(running.target, itertools.islice(bodies, 100), connections=8, duration=20.0)
    return bodies


def _tokens(answer: Answer) -> int:
    """Return how many tokens the backend ran for a text; 0 if there was no answer."""
    if answer.status != OK:
        return 0
    frame = FrameReader().feed(answer.body)[0]
    return frame.tokens if isinstance(frame, Done) else 0


@click.command("threads")
@click.option("--clients", default="1,2,4,8,16,32,64")
@duration(3.0)
@rounds(3)
def measure_threads(*, clients: str, duration: float, rounds: int) -> None:
    """Compare adaptive and fixed numbers of threads for a batch, for each number of clients."""
    texts = iter(sentences(400_000, seed=4))
    lines: list[Line] = []
    with demo_models() as models, contextlib.ExitStack() as stack:
        running = {
            way: stack.enter_context(backend(models, wide=setting))
            for way, setting in _THREADS.items()
        }
        info = running["adaptive"].model(_MODEL)

        def variant(way: RunningBackend, number: int) -> Callable[[], Turn]:
            def run() -> Outcome:
                bodies = calls(texts, info)
                return run_closed(way.target, bodies, connections=number, duration=duration)

            return metered(run, server=[way.pid])

        for number in map(int, clients.split(",")):
            variants = {way: variant(each, number) for way, each in running.items()}
            turns = in_turns(variants, rounds)
            lines += [{"clients": number} | row.line() for row in table_of(turns)]
    show("Threads", lines)
