"""Measures how many whole requests with many items or rows are answered in time under overload.

Each kind of request is first sent one at a time, which gives its latency, and then by several
callers, which gives the capacity. Then an open loop sends requests at twice the capacity. The
deadline of these requests is three times the measured latency. One run measures all of this, so
that the ratios are comparable.
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click
import msgspec

from loadtests.entailment import JUDGE, LABELS, ZERO_SHOT, write_algorithm, write_entailment
from loadtests.generator import OK, Outcome, run_closed
from loadtests.measured import demo_models, target_of
from loadtests.options import duration
from loadtests.overload import overloaded
from loadtests.report import Row, row_of, show
from testing.system import System

_MODEL = "sentiment"
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


@click.command()
@duration(30.0, "Seconds at twice the capacity.")
@click.option("--only", type=click.Choice(list(_KINDS)), multiple=True)
@click.option("--paced", is_flag=True, help="Use a device that takes time but no core.")
def measure(*, duration: float, only: tuple[str, ...], paced: bool) -> None:
    """Measure every kind of request through a gateway with one backend."""
    environment = {"SLUICEGATE_BACKEND_THREADS": "1"} | (_PACED if paced else {})
    with demo_models() as models:
        write_entailment(models)
        write_algorithm(models, _LONG, "long-document", "classify", uses=_MODEL)
        better = {"better": "entailment"}
        write_algorithm(models, _TOURNAMENT, "tournament", "infer", uses=JUDGE, **better)
        with System(models.parent / "data", models=models, environment=environment) as system:
            measured = {
                name: _measure(system, name, _KINDS[name], duration) for name in only or _KINDS
            }
    show(
        f"Overload of whole requests: a backend on {'a paced device' if paced else 'one core'}",
        [
            msgspec.structs.replace(row, what=f"{name}: {row.what}")
            for name, (rows, _) in measured.items()
            for row in rows
        ],
        *(f"{name}: {note}" for name, (_, note) in measured.items()),
    )


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
    rows, note = overloaded(
        system, target, bodies(), full, duration=seconds, deadline=deadline, items=kind.items
    )
    eager = closed(_EAGER, seconds, deadline)
    good = Outcome(
        duration=eager.duration, statuses={OK: eager.requests - eager.failed}, latencies=[]
    )
    what = f"answered to {_EAGER} callers who ask again at once"
    eager_row = row_of(what, good, baseline=full.rate * kind.items, items=kind.items)
    return [*rows, eager_row], f"{note} Callers who ask again at once got {eager.statuses}."
