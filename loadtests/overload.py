"""Measures a gateway and its backend at twice their capacity: goodput, refusals and wasted rows."""

import os
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click
import msgspec

from loadtests.generator import OK, Outcome, Target, run_closed
from loadtests.machine import pin
from loadtests.measured import backends_of, classify_bodies, demo_models, give_core, target_of
from loadtests.models import (
    JUDGE,
    LABELS,
    ZERO_SHOT,
    write_algorithm,
    write_entailment,
)
from loadtests.open_loop import outcome, run_open
from loadtests.options import duration
from loadtests.report import Row, row_of, show
from loadtests.workload import sentences
from testing.system import System

_BACKEND, _REST = 1, 0
_ONE_THREAD = {"SLUICEGATE_BACKEND_THREADS": "1"}
_ENCODER, _MODEL = "minilm", "sentiment"
_DEADLINE = 0.5
_RECOVERED = 2.0  # after this many seconds of overload, everybody must be answered in time
_LONG, _TOURNAMENT = "bench-long", "bench-tournament"
_EAGER = 32  # some callers retry before the time that `Retry-After` gives
_LEAST_TIME = 0.25  # the shortest deadline in seconds: a shorter one would measure the machine
# The device takes time but no core, so a run measures decisions and not the machine.
_PACED = {
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_PACED_BASE": "0.002",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "0.0001",
}
_WORDS = [f"{a}{b}" for a in "bcdfglmnprst" for b in ("ay", "ow", "ine", "ock", "elt")]


class _Kind(NamedTuple):
    """A kind of request: its path, its items, a function that makes bodies, and the callers."""

    path: str
    items: int
    body: Callable[[random.Random], object]
    callers: int = 4


@click.command("overload")
@duration(30.0, "Seconds at twice the capacity.")
def measure_overload(*, duration: float) -> None:
    """Measure requests of one text at twice the capacity, and the recovery afterwards.

    The backend runs on one core, and everything else on the other core. The capacity is the rate
    that 32 callers reach if each waits for an answer before its next request.
    """
    with (
        demo_models() as models,
        System(models.parent / "data", models=models, environment=_ONE_THREAD) as system,
    ):
        give_core(system, "backend", _BACKEND, others=_REST)
        pin([os.getpid()], _REST)
        bodies = iter(classify_bodies(sentences(200_000, seed=6)))
        patient = target_of(system, x_request_timeout="60")
        full = run_closed(patient, bodies, duration=max(3.0, duration / 4))
        target = target_of(system, x_request_timeout=f"{_DEADLINE}")
        rows, note = _overloaded(
            system, target, bodies, full, duration=duration, deadline=_DEADLINE
        )
        after = run_open(target, bodies, rate=full.rate / 2, duration=5.0)
    late = outcome([a for a in after if a.due > after[0].due + _RECOVERED], 1.0)
    recovered = (
        f"{_RECOVERED:.0f} s later, at half the capacity, {late.failed} of {late.requests} were"
        f" refused, and the slowest ended after {late.percentile(1.0) * 1000:.0f} ms."
    )
    show("Overload: backend on one core, the rest on the other", rows, note, recovered)


def _text(chooser: random.Random, words: int = 60) -> str:
    return " ".join(chooser.choices(_WORDS, k=words))


def _classify(items: int, callers: int = 4) -> _Kind:
    def body(chooser: random.Random) -> object:
        return {"model": _MODEL, "input": [_text(chooser) for _ in range(items)]}

    return _Kind("/v1/classify", items, body, callers)


def _zero_shot(chooser: random.Random) -> object:
    return {"model": ZERO_SHOT, "input": _text(chooser), "labels": LABELS}


def _long(chooser: random.Random) -> object:
    return {"model": _LONG, "input": [_text(chooser, 800) for _ in range(2)]}


def _tournament(chooser: random.Random) -> object:
    documents = [_text(chooser, 20) for _ in range(16)]
    return {"inputs": [{"documents": documents}], "parameters": {"top_n": 1}}


_KINDS = {
    "1 item": _classify(1, callers=16),
    "16 items": _classify(16),
    "256 items": _classify(256, callers=2),
    "zero-shot of 10 labels": _Kind("/v1/zero-shot", 1, _zero_shot),
    "2 long documents": _Kind("/v1/classify", 2, _long),
    "tournament of 16": _Kind(f"/v1/infer/{_TOURNAMENT}", 1, _tournament),
}


@click.command("whole-requests")
@duration(30.0, "Seconds at twice the capacity.")
@click.option("--only", type=click.Choice(list(_KINDS)), multiple=True)
@click.option("--paced", is_flag=True, help="Use a device that takes time but no core.")
def measure_whole_requests(*, duration: float, only: tuple[str, ...], paced: bool) -> None:
    """Measure requests with many items or rows at twice the capacity, through a gateway.

    Each kind of request is first sent one at a time, which gives its latency, and then by several
    callers, which gives the capacity. The deadline at twice the capacity is three times that
    latency. One run measures all of this, so that the ratios are comparable.
    """
    environment = _ONE_THREAD | (_PACED if paced else {})
    rows: list[Row] = []
    notes: list[str] = []
    with demo_models() as models:
        write_entailment(models)
        write_algorithm(models, _LONG, "long-document", "classify", uses=_MODEL)
        better = {"better": "entailment"}
        write_algorithm(models, _TOURNAMENT, "tournament", "infer", uses=JUDGE, **better)
        with System(models.parent / "data", models=models, environment=environment) as system:
            for name in only or _KINDS:
                found, note = _measure(system, name, _KINDS[name], duration)
                rows += [msgspec.structs.replace(row, what=f"{name}: {row.what}") for row in found]
                notes.append(f"{name}: {note}")
    device = "a paced device" if paced else "one core"
    show(f"Overload of whole requests: a backend on {device}", rows, *notes)


def _measure(system: System, name: str, kind: _Kind, duration: float) -> tuple[list[Row], str]:
    chooser = random.Random(len(name))

    def bodies() -> Iterator[bytes]:
        while True:
            yield msgspec.json.encode(kind.body(chooser))

    def closed(callers: int, seconds: float, timeout: float = 60.0) -> Outcome:
        target = target_of(system, kind.path, x_request_timeout=f"{timeout:.3f}")
        return run_closed(target, bodies(), connections=callers, duration=seconds)

    closed(1, 2.0)  # models are read, and costs are learned from the first requests
    alone = closed(1, 3.0).percentile(0.5)
    full = closed(kind.callers, max(6.0, 8 * alone))
    deadline, seconds = max(_LEAST_TIME, 3.0 * alone), max(duration, 20 * alone)
    target = target_of(system, kind.path, x_request_timeout=f"{deadline:.3f}")
    rows, note = _overloaded(
        system, target, bodies(), full, duration=seconds, deadline=deadline, items=kind.items
    )
    eager = closed(_EAGER, seconds, deadline)
    good = Outcome(duration=eager.duration, statuses={OK: eager.statuses.get(OK, 0)}, latencies=[])
    what = f"answered to {_EAGER} callers who ask again at once"
    rows.append(row_of(what, good, baseline=full.rate * kind.items, items=kind.items))
    return rows, f"{note} Callers who ask again at once got {eager.statuses}."


def _overloaded(
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

    Return the result, and a note on the refusals and on the rows that were computed for nothing.
    """
    (backend,) = backends_of(system)

    def counts() -> tuple[float, float]:
        return backend.counter("rows_total", _ENCODER), backend.counter("late_rows_total", _ENCODER)

    before = counts()
    answers = run_open(target, bodies, rate=2 * full.rate, duration=duration)
    computed, late = (now - then for now, then in zip(counts(), before, strict=True))
    done = [a for a in answers if a.status == OK]
    good = [a for a in done if a.latency <= deadline]
    refused = [a for a in answers if a.status != OK]
    used = sum(msgspec.json.decode(a.body)["usage"]["rows"] for a in done)
    said = sum(b"\r\nretry-after:" in a.head for a in refused)
    outcomes = {
        "capacity": full,
        "answered in time at twice that": outcome(good, duration),
        "refused at twice that": outcome(refused, duration),
    }
    rows = [
        row_of(what, each, baseline=full.rate * items, items=items)
        for what, each in outcomes.items()
    ]
    return rows, (
        f"{said} of {len(refused)} refusals said when to come back;"
        f" {max(0.0, computed - used):.0f} of {computed:.0f} rows were computed for nothing, and"
        f" {late:.0f} after their deadline."
    )
