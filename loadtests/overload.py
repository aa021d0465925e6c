"""Twice as much as a backend can do: what it still does, and how quickly it refuses the rest."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from backends.demo.build import build_demo_models
from backends.protocol import Done, Failed, FrameReader, Refusal
from loadtests.backend import backend, calls
from loadtests.generator import Outcome
from loadtests.machine import pin, this_machine
from loadtests.open_loop import Answer, open_loop
from loadtests.report import rows, show
from loadtests.workload import sentences

_BACKEND, _GENERATOR = 1, 0


def measure(*, duration: float, deadline: float) -> None:
    """Find the capacity with the generator on one core and the backend on the other; double it."""
    texts = iter(sentences(200_000, seed=6))
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        build_demo_models(models, print)
        with backend(models, threads="1") as running:
            pin([running.pid], _BACKEND)
            pin([os.getpid()], _GENERATOR)
            info = running.model("sentiment")

            def run(rate: float, seconds: float) -> list[Answer]:
                bodies = calls(texts, info, remaining=deadline)
                return asyncio.run(open_loop(running.target, bodies, rate=rate, duration=seconds))

            capacity = _capacity(run, lambda answers: sustained(answers, deadline))
            briefly = _capacity(run, answered)
            answers = run(2 * capacity, duration)
            after = run(capacity / 2, 5.0)
            late = running.counter("late_rows_total", "minilm")
    good = [a for a in answers if _done(a) and a.latency <= deadline]
    refused = [a for a in answers if not _done(a)]
    told = sum(_told(a) for a in refused)
    recovered = [a.latency for a in after if a.due > 2.0 and _done(a)]
    measured = {
        "capacity": [Outcome(duration=1.0, statuses={}, latencies=[1.0] * round(capacity))],
        "goodput at twice that": [_outcome(good, duration)],
        "refused at twice that": [_outcome(refused, duration)],
    }
    show("Overload: one core", rows(measured), {}, this_machine())
    print(f"\nfor 4 s, with a queue that grows, it can do {briefly:.0f} a second")
    print(f"rows run after their deadline: {late:.0f}")
    print(f"{told} of {len(refused)} refusals said when to come back;")
    print(f"2 s later, at half the capacity, {len(recovered)} were answered,")
    print(f"the slowest after {max(recovered, default=0.0) * 1000:.0f} ms")


def _capacity(
    run: Callable[[float, float], list[Answer]], judge: Callable[[list[Answer]], bool]
) -> float:
    """Return the highest rate whose answers pass, by halving an interval."""
    low, high = 50.0, 1200.0
    for _ in range(6):
        rate = (low + high) / 2
        answers = run(rate, 4.0)
        if judge(answers):
            low = rate
        else:
            high = rate
    return low


def answered(answers: list[Answer]) -> bool:
    """Whether 99 in 100 were answered, though a queue may have grown meanwhile."""
    return sum(map(_done, answers)) >= 0.99 * len(answers)


def sustained(answers: list[Answer], deadline: float) -> bool:
    """Whether 99 in 100 were answered, and the last second's without a queue that still grew.

    The queue holds nearly a deadline's work: a short run fills it rather than refuse.
    """
    last = max(answer.due for answer in answers) - 1.0
    waits = sorted(answer.latency for answer in answers if answer.due > last)
    return answered(answers) and waits[len(waits) // 2] < deadline / 4


def _done(answer: Answer) -> bool:
    if answer.status != 200:
        return False
    return isinstance(next(FrameReader().feed(answer.body)), Done)


def _told(answer: Answer) -> bool:
    if answer.status == 200:
        frame = next(FrameReader().feed(answer.body))
        return isinstance(frame, Failed) and frame.retry_after is not None
    return msgspec.msgpack.decode(answer.body, type=Refusal).retry_after is not None


def _outcome(answers: list[Answer], duration: float) -> Outcome:
    latencies = sorted(answer.latency for answer in answers)
    statuses: dict[int, int] = {}
    for answer in answers:
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
    return Outcome(duration=duration, statuses=statuses, latencies=latencies)
