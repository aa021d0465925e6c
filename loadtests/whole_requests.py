"""Measures how many requests of many items or rows are answered in time at twice the capacity.

Each kind is measured alone for its latency, then by several callers for the capacity, then in an
open loop at twice that, with three times the latency as deadline. All in one run, so that ratios
are comparable.
"""

import random
from collections.abc import Callable, Iterator

import click
import msgspec

from loadtests.demo import demo_models
from loadtests.entailment import JUDGE, LABELS, ZERO_SHOT, write_algorithm, write_entailment
from loadtests.generator import Outcome, run_closed
from loadtests.measured import backends_of, target_of
from loadtests.open_loop import Answer, outcome, run_open
from loadtests.options import duration
from loadtests.report import Row, row_of, show
from testing.system import System

_MODEL, _ENCODER = "sentiment", "minilm"
_LONG, _TOURNAMENT = "bench-long", "bench-tournament"
_WORDS = 60
_EAGER = 32  # callers who retry before the time they are given
_LEAST_TIME = 0.25  # seconds that a request has at least: less is a matter of the machine
# A device that takes its time without a core: a run then measures decisions, not the machine.
_PACED = {
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_PACED_BASE": "0.002",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "0.0001",
}


class RequestKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of request: its path, its items, and its factory of bodies."""

    path: str
    items: int
    body: Callable[["TextSource"], object]
    callers: int = 4


class TextSource:
    """Generates distinct texts."""

    def __init__(self, seed: int) -> None:
        self._chooser = random.Random(seed)
        self._words = [f"{a}{b}" for a in "bcdfglmnprst" for b in ("ay", "ow", "ine", "ock", "elt")]

    def text(self, words: int = _WORDS) -> str:
        """Return a random text."""
        return " ".join(self._chooser.choices(self._words, k=words))


def _classify(items: int, callers: int = 4) -> RequestKind:
    def body(texts: TextSource) -> object:
        return {"model": _MODEL, "input": [texts.text() for _ in range(items)]}

    return RequestKind(path="/v1/classify", items=items, body=body, callers=callers)


def _zero_shot(texts: TextSource) -> object:
    return {"model": ZERO_SHOT, "input": texts.text(), "labels": LABELS}


def _long(texts: TextSource) -> object:
    return {"model": _LONG, "input": [texts.text(800) for _ in range(2)]}


def _tournament(texts: TextSource) -> object:
    documents = [texts.text(20) for _ in range(16)]
    return {"inputs": [{"documents": documents}], "parameters": {"top_n": 1}}


KINDS = {
    "1 item": _classify(1, callers=16),
    "16 items": _classify(16),
    "256 items": _classify(256, callers=2),
    "zero-shot of 10 labels": RequestKind(path="/v1/zero-shot", items=1, body=_zero_shot),
    "2 long documents": RequestKind(path="/v1/classify", items=2, body=_long),
    "tournament of 16": RequestKind(path=f"/v1/infer/{_TOURNAMENT}", items=1, body=_tournament),
}


@click.command()
@duration(30.0, "Seconds at twice the capacity.")
@click.option("--only", type=click.Choice(list(KINDS)), multiple=True)
@click.option("--paced", is_flag=True, help="On a device that takes time but no core.")
def measure(*, duration: float, only: tuple[str, ...], paced: bool) -> None:
    """Measure every kind of request through a gateway with one backend."""
    environment = {"SLUICEGATE_BACKEND_THREADS": "1"} | (_PACED if paced else {})
    with demo_models() as models:
        write_entailment(models)
        write_algorithm(models, _LONG, "long-document", "classify", uses=_MODEL)
        better = {"better": "entailment"}
        write_algorithm(models, _TOURNAMENT, "tournament", "infer", uses=JUDGE, **better)
        with System(models.parent / "data", models=models, environment=environment) as system:
            table = [
                row
                for name, kind in KINDS.items()
                if not only or name in only
                for row in _measure(system, name, kind, duration)
            ]
    device = "a paced device" if paced else "one core"
    show(f"Overload of whole requests: a backend on {device}", table)


def _measure(system: System, name: str, kind: RequestKind, duration: float) -> list[Row]:
    texts = TextSource(seed=len(name))
    (running,) = backends_of(system)

    def bodies() -> Iterator[bytes]:
        while True:
            yield msgspec.json.encode(kind.body(texts))

    def closed(callers: int, seconds: float, timeout: float = 60.0) -> Outcome:
        target = target_of(system, kind.path, x_request_timeout=f"{timeout:.3f}")
        return run_closed(target, bodies(), connections=callers, duration=seconds)

    closed(1, 2.0)  # the models are read, and the first requests learned from
    alone = closed(1, 3.0)
    full = closed(kind.callers, max(6.0, 8 * alone.percentile(0.5)))
    deadline = max(_LEAST_TIME, 3.0 * alone.percentile(0.5))
    before = running.counter("rows_total", _ENCODER)
    target = target_of(system, kind.path, x_request_timeout=f"{deadline:.3f}")
    seconds = max(duration, 20 * alone.percentile(0.5))
    answers = run_open(target, bodies(), rate=2 * full.rate, duration=seconds)
    computed = running.counter("rows_total", _ENCODER) - before
    eager = closed(_EAGER, seconds, deadline)
    return _rows(name, kind, full, answers, eager, seconds=seconds, computed=computed)


def _rows(
    name: str,
    kind: RequestKind,
    full: Outcome,
    answers: list[Answer],
    eager: Outcome,
    *,
    seconds: float,
    computed: float,
) -> list[Row]:
    good = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status != 200]
    used = sum(msgspec.json.decode(a.body)["usage"]["rows"] for a in good)
    said = sum(b"\r\nretry-after:" in a.head for a in refused)
    print(
        f"{name}: {said} of {len(refused)} refusals say when to come back; "
        f"{max(0.0, computed - used):.0f} of {computed:.0f} rows were computed for nothing"
    )
    able = full.rate * kind.items
    rate = eager.statuses.get(200, 0) * kind.items / eager.duration
    what = f"{name}: answered to {_EAGER} callers who ask again at once"
    return [
        Row(what=f"{name}: capacity, items", rate=able, ratio=1.0),
        *(
            row_of(f"{name}: {end} at twice that", run, baseline=able, items=kind.items)
            for end, run in (
                ("answered", outcome(good, seconds)),
                ("refused", outcome(refused, seconds)),
            )
        ),
        Row(what=what, rate=rate, ratio=round(rate / able, 3), statuses=eager.statuses),
    ]
