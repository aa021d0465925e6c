"""Measures short sentences among long documents, with batches by length and by order of arrival."""

import itertools
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from loadtests.backend import RunningBackend, backend, calls
from loadtests.generator import OK, Outcome, run_closed
from loadtests.measured import demo_models, metered
from loadtests.open_loop import Answer, outcome, run_open
from loadtests.options import duration, rounds
from loadtests.padded import write_padded
from loadtests.report import show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from wire.protocol import Done, FrameReader

_ENCODER = "minilm"
_SHARE = 0.05
_LONG = 256  # tokens: the most that the demo encoder reads
_OFFERED = 0.7
_TIMEOUT = 2.0  # seconds that a caller waits; no item is queued for so long
# A common setup of batchers: up to 32 rows, and no bound on tokens.
_ARRIVAL = {"batch_order": "arrival", "max_batch_rows": "32", "max_batch_tokens": "65536"}


@click.command()
@duration(10.0)
@rounds(5)
def measure(*, duration: float, rounds: int) -> None:
    """Measure the wait of short sentences among long documents, with two ways of batching.

    Rows are batched by length, or in order of arrival. The load is 0.7 of the capacity with batches
    in order of arrival. The capacity is the rate of 32 callers who each wait for an answer before
    the next request.
    """
    with demo_models() as models:
        exported = Path(shutil.copytree(models, models.parent / "exported"))
        write_padded(exported / _ENCODER / "1" / "model.onnx")
        with backend(exported, **_ARRIVAL) as running:
            bodies = _warm(running, seed=99)
            able = run_closed(running.target, bodies, connections=32, duration=duration).rate
        rate = _OFFERED * able
        # Batches by length and by arrival get the same texts.
        seeds = (seed for seed in itertools.count() for _ in range(2))
        run = partial(_run, seeds, rate=rate, duration=duration)
        variants = {
            "by length": metered(partial(run, models)),
            "by arrival, padded": metered(partial(run, exported, **_ARRIVAL)),
        }
        turns = in_turns(variants, rounds)
    title = f"Mixed lengths: {rate:.0f} requests a second offered, answers to short ones"
    show(title, table_of(turns))


def mixed(*, seed: int) -> Iterator[str]:
    """Yield distinct sentences.

    A document of 256 or more tokens comes before one sentence in twenty.
    """
    chooser = random.Random(seed)
    short = iter(sentences(200_000, seed=seed))
    for text in short:
        if chooser.random() < _SHARE:
            yield " ".join(itertools.islice(short, _LONG // 4))
        yield text


def _run(
    seeds: Iterator[int], models: Path, *, rate: float, duration: float, **settings: str
) -> Outcome:
    """Send the mixed texts; return the outcome of the short texts only."""
    with backend(models, **settings) as running:
        bodies = _warm(running, seed=next(seeds))
        answers = run_open(running.target, bodies, rate=rate, duration=duration)
        waste = running.counter("padding_waste_ratio", _ENCODER)
    print(f"padding made {waste:.2f} of the work of {settings or 'batches by length'}")
    return outcome([answer for answer in answers if 0 < _tokens(answer) < _LONG], duration)


def _warm(running: RunningBackend, *, seed: int) -> Iterator[bytes]:
    """Return the calls of a seed, after the backend has answered the first hundred."""
    bodies = calls(mixed(seed=seed), running.model("sentiment"), remaining=_TIMEOUT)
    run_closed(running.target, itertools.islice(bodies, 100), connections=8, duration=20.0)
    return bodies


def _tokens(answer: Answer) -> int:
    """Return how many tokens the backend ran for a text; 0 if there was no answer."""
    if answer.status != OK:
        return 0
    frame = FrameReader().feed(answer.body)[0]
    return frame.tokens if isinstance(frame, Done) else 0
