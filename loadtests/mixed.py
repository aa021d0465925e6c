"""Measures short sentences among long documents, beside batches in order of arrival."""

import itertools
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from backends.protocol import Done, FrameReader
from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.capacity import capacity, sustained
from loadtests.demo import demo_models
from loadtests.generator import Outcome
from loadtests.open_loop import Answer, outcome, run_open
from loadtests.options import duration, rounds
from loadtests.padded import write_padded
from loadtests.report import rows, show
from loadtests.turns import in_turns
from loadtests.workload import sentences

_ENCODER = "minilm"
_SHARE = 0.05
_LONG = 256  # tokens: what the demo encoder reads at most
_OFFERED = 0.7
_TIMEOUT = 2.0  # seconds that a caller waits: the queue must not grow towards it
_BY_LENGTH, _BY_ARRIVAL = "by length", "by arrival, padded"
# As a common batcher is set up: up to 32 rows, and no budget of tokens.
_ARRIVAL = {"batch_order": "arrival", "max_batch_rows": "32", "max_batch_tokens": "65536"}


@click.command()
@duration(10.0)
@rounds(5)
def measure(*, duration: float, rounds: int) -> None:
    """Measure the wait of short sentences among long documents, batched by length and by arrival.

    The load is 0.7 of the rate that batches by arrival sustain.
    """
    with demo_models() as models:
        exported = Path(shutil.copytree(models, models.parent / "exported"))
        write_padded(exported / _ENCODER / "1" / "model.onnx")
        rate = _sustained(exported)
        seeds = itertools.count()
        run = partial(_run, seeds, rate=rate, duration=duration)
        variants = {
            _BY_LENGTH: partial(run, _BY_LENGTH, models),
            _BY_ARRIVAL: partial(run, _BY_ARRIVAL, exported, **_ARRIVAL),
        }
        measured = in_turns(variants, rounds)
    show(f"Mixed lengths: {rate:.0f}/s offered", rows(measured))
    for way, runs in measured.items():
        p95 = sorted(round(run.percentile(0.95) * 1000) for run in runs)
        print(f"{way}: p95 of the short ones {p95[len(p95) // 2]} ms; each run {p95}")


def _sustained(exported: Path) -> float:
    """Return 0.7 of the rate that batches by arrival sustain."""
    with backend(exported, **_ARRIVAL) as running:
        bodies = _warm(running, seed=99)

        def run(rate: float, seconds: float) -> list[Answer]:
            return run_open(running.target, bodies, rate=rate, duration=seconds)

        return _OFFERED * capacity(run, lambda answers: sustained(answers, _TIMEOUT, _is_done))


def mixed(*, seed: int) -> Iterator[str]:
    """Yield distinct sentences, one in twenty of them a document of 256 tokens and more."""
    chooser = random.Random(seed)
    short = iter(sentences(200_000, seed=seed))
    for text in short:
        if chooser.random() < _SHARE:
            yield " ".join(itertools.islice(short, _LONG // 4))
        yield text


def _run(
    seeds: Iterator[int], way: str, models: Path, *, rate: float, duration: float, **settings: str
) -> Outcome:
    """Return the answers to short texts."""
    with backend(models, **settings) as running:
        bodies = _warm(running, seed=next(seeds) // 2)  # both ways answer the same texts
        answers = run_open(running.target, bodies, rate=rate, duration=duration)
        waste = running.counter("padding_waste_ratio", _ENCODER)
    print(f"{way}: padding made {waste:.2f} of the work")
    return outcome([answer for answer in answers if 0 < _tokens(answer) < _LONG], duration)


def _warm(running: RunningBackend, *, seed: int) -> Iterator[bytes]:
    """Return the calls of a seed, after the backend has answered a hundred of them."""
    bodies = calls(mixed(seed=seed), running.model("sentiment"), remaining=_TIMEOUT)
    run_closed(running, itertools.islice(bodies, 100), connections=8, duration=20.0)
    return bodies


def _is_done(answer: Answer) -> bool:
    return _tokens(answer) > 0


def _tokens(answer: Answer) -> int:
    """Return how many tokens the backend ran for a text, 0 where it did not."""
    if answer.status != 200:
        return 0
    frame = FrameReader().feed(answer.body)[0]
    return frame.tokens if isinstance(frame, Done) else 0
