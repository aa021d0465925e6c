"""Measures short sentences among long documents, beside batches in order of arrival."""

import asyncio
import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from backends.model_tools.demo.build import build_demo_models
from backends.protocol import Done, FrameReader
from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.capacity import capacity, sustained
from loadtests.generator import Outcome
from loadtests.machine import this_machine
from loadtests.open_loop import Answer, open_loop
from loadtests.options import duration, rounds
from loadtests.padded import write_padded
from loadtests.report import rows, show
from loadtests.workload import sentences

_ENCODER = "minilm"
_OK = 200
_SHARE = 0.05
_LONG = 256  # tokens: what the demo encoder reads at most
_OFFERED = 0.7
_TIMEOUT = 2.0  # seconds that a caller waits: the queue must not grow towards it
_BY_LENGTH, _BY_ARRIVAL = "by length", "by arrival, padded"


@click.command()
@duration(10.0)
@rounds(5)
def measure(*, duration: float, rounds: int) -> None:
    """Offer both what arrival order sustains, times 0.7; print how long short ones waited."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        build_demo_models(models, print)
        exported = Path(folder) / "exported"
        shutil.copytree(models, exported)
        write_padded(exported / _ENCODER / "1" / "model.onnx")
        rate = _sustained(exported)
        measured: dict[str, list[Outcome]] = {}
        for number in range(rounds):
            for way, repository, settings in _ways(models, exported):
                with backend(repository, **settings) as running:
                    answers = _offer(running, rate, duration, seed=number)
                    waste = running.counter("padding_waste_ratio", _ENCODER)
                print(f"{way}: padding made {waste:.2f} of the work")
                measured.setdefault(way, []).append(_short(answers, duration))
    show(f"Mixed lengths: {rate:.0f}/s offered", rows(measured), {}, this_machine())
    for way, runs in measured.items():
        p95 = sorted(round(run.percentile(0.95) * 1000) for run in runs)
        print(f"{way}: p95 of the short ones {p95[len(p95) // 2]} ms; each run {p95}")


def _ways(models: Path, exported: Path) -> list[tuple[str, Path, dict[str, str]]]:
    # As a common batcher is set up: up to 32 rows, and no budget of tokens.
    arrival = {"batch_order": "arrival", "max_batch_rows": "32", "max_batch_tokens": "65536"}
    return [(_BY_LENGTH, models, {}), (_BY_ARRIVAL, exported, arrival)]


def _sustained(exported: Path) -> float:
    """Return 0.7 of what batching by arrival sustains, offered as it will be."""
    _, repository, settings = _ways(exported, exported)[1]
    with backend(repository, **settings) as running:
        bodies = _bodies(running, seed=99)
        run_closed(running, itertools.islice(bodies, 100), connections=8, duration=20.0)

        def run(rate: float, seconds: float) -> list[Answer]:
            return asyncio.run(open_loop(running.target, bodies, rate=rate, duration=seconds))

        return _OFFERED * capacity(run, lambda answers: sustained(answers, _TIMEOUT, _is_done))


def mixed(*, seed: int) -> Iterator[str]:
    """Yield distinct sentences, one in twenty of them a document of 256 tokens and more."""
    chooser = random.Random(seed)
    short = iter(sentences(200_000, seed=seed))
    for text in short:
        if chooser.random() < _SHARE:
            yield " ".join(itertools.islice(short, _LONG // 4))
        yield text


def _offer(running: RunningBackend, rate: float, duration: float, *, seed: int) -> list[Answer]:
    bodies = _bodies(running, seed=seed)
    run_closed(running, itertools.islice(bodies, 100), connections=8, duration=20.0)
    return asyncio.run(open_loop(running.target, bodies, rate=rate, duration=duration))


def _bodies(running: RunningBackend, *, seed: int) -> Iterator[bytes]:
    return calls(mixed(seed=seed), running.model("sentiment"), remaining=_TIMEOUT)


def _is_done(answer: Answer) -> bool:
    return answer.status == _OK and isinstance(FrameReader().feed(answer.body)[0], Done)


def _short(answers: list[Answer], duration: float) -> Outcome:
    """Return the answers to short texts; a backend says how many tokens it ran."""
    latencies = [
        answer.latency
        for answer in answers
        if answer.status == _OK
        and isinstance(done := FrameReader().feed(answer.body)[0], Done)
        and done.tokens < _LONG
    ]
    return Outcome(duration=duration, statuses={200: len(latencies)}, latencies=sorted(latencies))
