"""Measures how two models of equal cost share a saturated device."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from loadtests.backend import RunningBackend, backend, calls
from loadtests.generator import run_closed
from loadtests.machine import pin
from loadtests.measured import demo_models
from loadtests.open_loop import open_loop, outcome
from loadtests.report import Line, show
from loadtests.workload import sentences

_BACKEND, _GENERATOR = 1, 0
_BUSY = 10  # calls of the busy model for each call of the other model
_FOLLOW = 10.0  # seconds within which shares must follow a change of the load
_ENCODERS = ("minilm", "minilm-twin")


class _Sample(NamedTuple):
    """Device seconds that each encoder had used at the time `at`."""

    at: float
    used: tuple[float, ...]


@click.command()
@click.option("--phase", default=30.0, help="Seconds before the swap, and after it.")
@click.option("--overload", default=1.3, help="Load, in multiples of the capacity.")
@click.option("--deadline", default=0.5, help="Seconds that a caller waits.")
def measure(*, phase: float, overload: float, deadline: float) -> None:
    """Send calls of two models, ten to one for `phase` seconds, then one to ten.

    Print the device seconds that each model used.
    """
    with demo_models() as models:
        _add_twin(models)
        with backend(models, threads="1") as running:
            pin([running.pid], _BACKEND)
            pin([os.getpid()], _GENERATOR)
            first, second = (
                calls(iter(sentences(150_000, seed=seed)), running.model(name), remaining=deadline)
                for seed, name in ((7, "sentiment"), (8, "sentiment-twin"))
            )
            mixture = _mixed(first, second)
            able = run_closed(running.target, mixture, connections=32, duration=5.0).rate
            bodies = _swapped(first, second, round(overload * able * phase))
            samples = asyncio.run(
                _sampled(running, bodies, rate=overload * able, duration=2 * phase)
            )
    start = samples[0].at
    swap, end = start + phase, start + 2 * phase
    lines: list[Line] = [
        {"seconds": begin, "to 1": _ratio(samples, start + begin, start + begin + 2)}
        for begin in range(0, round(2 * phase), 2)
    ]
    before = _ratio(samples, start + min(_FOLLOW, phase) / 2, swap)
    after = _ratio(samples, swap + min(_FOLLOW, phase / 2), end)
    show(
        f"Shares of a device: ten to one, {overload:.1f} times the capacity of {able:.0f}/s",
        lines,
        f"Before the swap {before:.2f} : 1; {_FOLLOW:.0f} s after it 1 : {1 / after:.2f}",
    )


def _mixed(busy: Iterator[bytes], other: Iterator[bytes]) -> Iterator[bytes]:
    """Yield ten calls of `busy` for each call of `other`."""
    while True:
        for _ in range(_BUSY):
            yield next(busy)
        yield next(other)


def _swapped(first: Iterator[bytes], second: Iterator[bytes], count: int) -> Iterator[bytes]:
    """Yield `count` calls, ten of `first` for each of `second`; then go on with roles swapped."""
    before = _mixed(first, second)
    for _ in range(count):
        yield next(before)
    yield from _mixed(second, first)


def _ratio(samples: list[_Sample], begin: float, end: float) -> float:
    """Return the ratio of the device seconds that two encoders used between two times.

    The ratio is the first encoder's seconds divided by the second encoder's.
    """
    inside = [sample for sample in samples if begin <= sample.at <= end]
    if not inside:  # the machine was too busy to take samples
        return float("nan")
    first, second = (
        last - earlier for earlier, last in zip(inside[0].used, inside[-1].used, strict=True)
    )
    return first / second if second else float("inf")


async def _sampled(
    running: RunningBackend, bodies: Iterator[bytes], *, rate: float, duration: float
) -> list[_Sample]:
    """Run an open loop, and read the device seconds meanwhile."""
    load = asyncio.create_task(open_loop(running.target, bodies, rate=rate, duration=duration))
    samples: list[_Sample] = []
    while not load.done():
        samples.append(await asyncio.to_thread(_sample, running))
        await asyncio.wait([load], timeout=0.4)
    ended = outcome(await load, duration)
    print(f"{ended.rate:.0f}/s answered or refused: {ended.statuses}")
    return samples


def _sample(running: RunningBackend) -> _Sample:
    used = tuple(running.counter("busy_seconds_total", encoder) for encoder in _ENCODERS)
    return _Sample(time.perf_counter(), used)


def _add_twin(models: Path) -> None:
    """Copy the encoder and a head over it under other names, so that two encoders compete."""
    encoder, twin = _ENCODERS
    shutil.copytree(models / encoder, models / twin)
    shutil.copytree(models / "sentiment", models / "sentiment-twin")
    for manifest in (models / "sentiment-twin").rglob("model.yaml"):
        text = manifest.read_text().replace(f"encoder: {encoder}\n", f"encoder: {twin}\n")
        manifest.write_text(text)
