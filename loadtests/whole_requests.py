"""Measures requests of many items or rows at twice the capacity: those answered in time.

Each kind is measured alone for its latency, then by several callers for the capacity, then in an
open loop at twice that, with three times the latency as deadline. All in one run, so that ratios
are comparable.
"""

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
import numpy as np
import yaml

from backends.model_tools.demo.build import build_demo_models
from loadtests.backend import RunningBackend
from loadtests.generator import Outcome, Target, closed_loop
from loadtests.machine import this_machine
from loadtests.open_loop import Answer, open_loop
from loadtests.options import duration
from loadtests.report import Row, show
from testing.system import System

_MODEL, _ENCODER = "sentiment", "minilm"
_JUDGE, _ZERO_SHOT = "bench-nli", "bench-zero-shot"
_LONG, _TOURNAMENT = "bench-long", "bench-tournament"
_LABELS = ["music", "work", "family", "picture", "world", "life", "time", "people", "story", "fast"]
_DIMENSIONS = 384
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
    body: Callable[["TextSource"], bytes]
    callers: int = 4


class TextSource:
    """Generates distinct texts."""

    def __init__(self, seed: int) -> None:
        self._chooser = random.Random(seed)
        self._words = [f"{a}{b}" for a in "bcdfglmnprst" for b in ("ay", "ow", "ine", "ock", "elt")]

    def text(self, words: int = _WORDS) -> str:
        """Return a text of so many words."""
        return " ".join(self._chooser.choices(self._words, k=words))


def _classify(items: int) -> Callable[[TextSource], bytes]:
    def body(texts: TextSource) -> bytes:
        return msgspec.json.encode({"model": _MODEL, "input": [texts.text() for _ in range(items)]})

    return body


def _zero_shot(texts: TextSource) -> bytes:
    return msgspec.json.encode({"model": _ZERO_SHOT, "input": texts.text(), "labels": _LABELS})


def _long(texts: TextSource) -> bytes:
    return msgspec.json.encode({"model": _LONG, "input": [texts.text(800) for _ in range(2)]})


def _tournament(texts: TextSource) -> bytes:
    documents = [texts.text(20) for _ in range(16)]
    return msgspec.json.encode({"inputs": [{"documents": documents}], "parameters": {"top_n": 1}})


KINDS = {
    "1 item": RequestKind(path="/v1/classify", items=1, body=_classify(1), callers=16),
    "16 items": RequestKind(path="/v1/classify", items=16, body=_classify(16)),
    "256 items": RequestKind(path="/v1/classify", items=256, body=_classify(256), callers=2),
    "zero-shot of 10 labels": RequestKind(path="/v1/zero-shot", items=1, body=_zero_shot),
    "2 long documents": RequestKind(path="/v1/classify", items=2, body=_long),
    "tournament of 16": RequestKind(path=f"/v1/infer/{_TOURNAMENT}", items=1, body=_tournament),
}


@click.command()
@duration(30.0, "Seconds at twice the capacity.")
@click.option("--only", type=click.Choice(list(KINDS)), multiple=True)
@click.option("--paced", is_flag=True, help="On a device that takes time but no core.")
def measure(*, duration: float, only: tuple[str, ...], paced: bool) -> None:
    """Measure every kind through a gateway with one backend, and print one table."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", print)
        _write_models(root / "models")
        environment = {"SLUICEGATE_BACKEND_THREADS": "1"} | (_PACED if paced else {})
        with System(
            root / "data",
            models=root / "models",
            environment=environment,
        ) as system:
            table: list[Row] = []
            for name, kind in KINDS.items():
                if not only or name in only:
                    table += _measure(system, name, kind, duration)
            device = "a paced device" if paced else "one core"
            show(f"Overload of whole requests: a backend on {device}", table, {}, this_machine())


def _measure(system: System, name: str, kind: RequestKind, duration: float) -> list[Row]:
    texts = TextSource(seed=len(name))
    child = system.processes("backend")[0]
    running = RunningBackend(port=int((child.address or "").rpartition(":")[2]), pid=child.pid)

    def bodies() -> Iterator[bytes]:
        while True:
            yield kind.body(texts)

    def closed(callers: int, seconds: float) -> Outcome:
        target = _target(system, kind, 60.0)
        return asyncio.run(closed_loop(target, bodies(), connections=callers, duration=seconds))

    closed(1, 2.0)  # the models are read, and the first requests learned from
    alone = closed(1, 3.0)
    full = closed(kind.callers, max(6.0, 8 * alone.percentile(0.5)))
    deadline = max(_LEAST_TIME, 3.0 * alone.percentile(0.5))
    before = running.counter("rows_total", _ENCODER)
    target = _target(system, kind, deadline)
    rate, seconds = 2 * full.rate, max(duration, 20 * alone.percentile(0.5))
    answers = asyncio.run(open_loop(target, bodies(), rate=rate, duration=seconds))
    rows = running.counter("rows_total", _ENCODER) - before
    found = _rows(name, kind, full, answers, seconds=seconds, rows=rows)
    impatient = asyncio.run(closed_loop(target, bodies(), connections=_EAGER, duration=seconds))
    return [*found, _impatient(name, kind, impatient, full.rate * kind.items)]


def _rows(
    name: str,
    kind: RequestKind,
    full: Outcome,
    answers: list[Answer],
    *,
    seconds: float,
    rows: float,
) -> list[Row]:
    good = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status != 200]
    used = sum(msgspec.json.decode(a.body)["usage"]["rows"] for a in good)
    said = sum(b"\r\nretry-after:" in a.head for a in refused)
    able = full.rate * kind.items
    print(
        f"{name}: {said} of {len(refused)} refusals say when to come back; "
        f"{max(0.0, rows - used):.0f} of {rows:.0f} rows were computed for nothing"
    )
    return [
        Row(what=f"{name}: capacity, items", rate=able, ratio=1.0),
        _row(f"{name}: answered at twice that", good, kind.items, seconds, able),
        _row(f"{name}: refused at twice that", refused, kind.items, seconds, able),
    ]


def _impatient(name: str, kind: RequestKind, outcome: Outcome, able: float) -> Row:
    rate = outcome.statuses.get(200, 0) * kind.items / outcome.duration
    return Row(
        what=f"{name}: answered to {_EAGER} callers who ask again at once",
        rate=rate,
        ratio=round(rate / able, 3),
        statuses=outcome.statuses,
    )


def _row(what: str, answers: list[Answer], items: int, seconds: float, able: float) -> Row:
    statuses: dict[int, int] = {}
    for answer in answers:
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
    latencies = sorted(answer.latency for answer in answers)
    rate = len(answers) * items / seconds
    outcome = Outcome(duration=seconds, statuses=statuses, latencies=latencies)
    return Row(
        what=what,
        rate=rate,
        ratio=round(rate / able, 3),
        p50=round(outcome.percentile(0.5) * 1000, 1) if latencies else None,
        p99=round(outcome.percentile(0.99) * 1000, 1) if latencies else None,
        statuses=statuses,
    )


def _target(system: System, kind: RequestKind, deadline: float) -> Target:
    headers = (
        ("authorization", f"Bearer {system.key}"),
        ("x-request-timeout", f"{deadline:.3f}"),
    )
    return Target(host="127.0.0.1", port=system.port, path=kind.path, headers=headers)


def _write_models(models: Path) -> None:
    """Write a judge of pairs over the demo encoder, and algorithms of many rows over it."""
    judge: dict[str, object] = {
        "kind": "head",
        "encoder": _ENCODER,
        "task": "classify",
        "output": "pooled",
        "labels": ["contradiction", "neutral", "entailment"],
        "weights": "head.npz",
    }
    algorithms: dict[str, dict[str, object]] = {
        _ZERO_SHOT: {"algorithm": "zero-shot-entailment", "uses": [_JUDGE], "tasks": ["zero-shot"]},
        _LONG: {"algorithm": "long-document", "uses": [_MODEL], "tasks": ["classify"]},
        _TOURNAMENT: {
            "algorithm": "tournament",
            "uses": [_JUDGE],
            "tasks": ["infer"],
            "options": {"better": "entailment"},
        },
    }
    manifests = {_JUDGE: judge} | {
        name: {"kind": "algorithm"} | each for name, each in algorithms.items()
    }
    for name, manifest in manifests.items():
        folder = models / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    weights = np.random.default_rng(1).standard_normal((_DIMENSIONS, 3)).astype(np.float32)
    np.savez(models / _JUDGE / "1" / "head.npz", w0=weights, b0=np.zeros(3, dtype=np.float32))
