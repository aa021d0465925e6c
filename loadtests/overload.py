"""Measures a gateway and its backend at twice their capacity: goodput and refusals."""

import os
from collections.abc import Iterator

import click
import msgspec

from loadtests.generator import OK, Outcome, Target, run_closed
from loadtests.machine import pin
from loadtests.measured import backends_of, classify_bodies, demo_models, give_core, target_of
from loadtests.open_loop import outcome, run_open
from loadtests.options import duration
from loadtests.report import Row, row_of, show
from loadtests.workload import sentences
from testing.system import System

_BACKEND, _REST = 1, 0
_ENCODER = "minilm"
_RECOVERED = 2.0  # after this many seconds of overload, everybody must be answered in time
_TEXTS = 200_000


@click.command()
@duration(30.0, "Seconds at twice the capacity.")
@click.option("--deadline", default=0.5, help="Seconds that a caller waits.")
def measure(*, duration: float, deadline: float) -> None:
    """Find the capacity, then send twice the capacity.

    The backend runs on one core, and everything else on the other core. The capacity is the rate
    that 32 callers reach if each waits for an answer before its next request.
    """
    settings = {"SLUICEGATE_BACKEND_THREADS": "1"}
    with (
        demo_models() as models,
        System(models.parent / "data", models=models, environment=settings) as system,
    ):
        give_core(system, "backend", _BACKEND, others=_REST)
        pin([os.getpid()], _REST)
        bodies = iter(classify_bodies(sentences(_TEXTS, seed=6)))
        patient = target_of(system, x_request_timeout="60")
        full = run_closed(patient, bodies, connections=32, duration=max(3.0, duration / 4))
        target = target_of(system, x_request_timeout=f"{deadline}")
        rows, note = overloaded(system, target, bodies, full, duration=duration, deadline=deadline)
        after = run_open(target, bodies, rate=full.rate / 2, duration=5.0)
    late = outcome([a for a in after if a.due > _RECOVERED], 1.0)
    recovered = (
        f"{_RECOVERED:.0f} s later, at half the capacity, {late.failed} of {late.requests} were"
        f" refused, and the slowest ended after {late.percentile(1.0) * 1000:.0f} ms."
    )
    show("Overload: backend on one core, the rest on the other", rows, note, recovered)


def overloaded(
    system: System,
    target: Target,
    bodies: Iterator[bytes],
    full: Outcome,
    *,
    duration: float,
    deadline: float,
    items: int = 1,
) -> tuple[list[Row], str]:
    """Send requests of `items` items at twice the rate of `full`.

    Return the result, and whether both the refusals and the number of computed rows were correct.
    """
    (backend,) = backends_of(system)
    counters = ("rows_total", "late_rows_total")
    before = [backend.counter(name, _ENCODER) for name in counters]
    answers = run_open(target, bodies, rate=2 * full.rate, duration=duration)
    computed, late = (
        backend.counter(name, _ENCODER) - count
        for name, count in zip(counters, before, strict=True)
    )
    done = [a for a in answers if a.status == OK]
    good = [a for a in done if a.latency <= deadline]
    refused = [a for a in answers if a.status != OK]
    used = sum(msgspec.json.decode(a.body)["usage"]["rows"] for a in done)
    said = sum(b"\r\nretry-after:" in a.head for a in refused)
    able = full.rate * items
    rows = [
        row_of("capacity", full, baseline=able, items=items),
        row_of(
            "answered in time at twice that", outcome(good, duration), baseline=able, items=items
        ),
        row_of("refused at twice that", outcome(refused, duration), baseline=able, items=items),
    ]
    return rows, (
        f"{said} of {len(refused)} refusals said when to come back;"
        f" {max(0.0, computed - used):.0f} of {computed:.0f} rows were computed for nothing, and"
        f" {late:.0f} after their deadline."
    )
