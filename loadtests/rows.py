"""Measures rows per second of zero-shot requests of many rows beside one-row requests."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import msgspec
import numpy as np
import yaml

from backends.model_tools.demo.build import build_demo_models
from backends.protocol import Call, CallItem, ClassifyParameters, Task, ZeroShotParameters
from loadtests.backend import RunningBackend, backend, run_closed
from loadtests.generator import Outcome, Target, closed_loop
from loadtests.machine import this_machine
from loadtests.options import rounds
from loadtests.report import Row, rows, show
from loadtests.workload import sentences
from testing.system import System

_LABELS = ["music", "work", "family", "picture", "world", "life", "time", "people", "story", "fast"]
_TEMPLATE = "this text is about {}"
_JUDGE, _ZERO_SHOT = "bench-nli", "bench-zero-shot"
_DIMENSIONS = 384
_ONE, _MANY = "requests of one row", f"zero-shot requests of {len(_LABELS)} labels"

# Runs single rows (pairs of texts), or else zero-shot requests (texts), to their end.
Run = Callable[[list[tuple[str, str]] | list[str]], Outcome]


@click.command()
@click.option("--connections", default=64, help="Callers at once.")
@click.option("--count", default=300, help="Zero-shot requests of each run.")
@rounds(3)
def measure(*, connections: int, count: int, rounds: int) -> None:
    """Measure a backend over HTTP, then the whole path through the gateway; print a table each.

    `count` is the zero-shot requests of a run. No text is asked twice, and the rows of both sides
    have the same lengths: the text of a single row is that of a zero-shot request, words mixed.
    """
    texts = sentences(2 * count * rounds, seed=8)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", print)
        _write_models(root / "models")
        with backend(root / "models") as running:
            measured = _compare(_backend_runner(running, connections), texts[::2], rounds)
            show(f"Rows of a backend: {connections} connections", measured, {}, this_machine())
        with System(root / "data", models=root / "models") as system:
            measured = _compare(_gateway_runner(system, connections), texts[1::2], rounds)
            show(f"Rows of the gateway: {connections} connections", measured, {}, this_machine())


def _compare(run: Run, texts: list[str], rounds: int) -> list[Row]:
    measured: dict[str, list[Outcome]] = {_ONE: [], _MANY: []}
    for number in range(rounds):
        own = texts[number::rounds]
        measured[_ONE].append(run(_single_rows(own)))
        measured[_MANY].append(_by_row(run(own)))
    return rows(measured)


def _single_rows(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return as many pairs as the zero-shot requests have rows, of the same lengths."""
    chooser = random.Random(5)
    pairs = []
    for text in texts:
        words = text.split()
        for label in _LABELS:
            chooser.shuffle(words)
            pairs.append((" ".join(words), _TEMPLATE.format(label)))
    chooser.shuffle(pairs)
    return pairs


def _by_row(outcome: Outcome) -> Outcome:
    """Return an outcome whose rate is of rows."""
    return msgspec.structs.replace(
        outcome, latencies=[latency for latency in outcome.latencies for _ in _LABELS]
    )


def _backend_runner(running: RunningBackend, connections: int) -> Run:
    def run(asked: list[tuple[str, str]] | list[str]) -> Outcome:
        return run_closed(running, _calls(running, asked), connections=connections, duration=120)

    return run


def _calls(running: RunningBackend, asked: list[tuple[str, str]] | list[str]) -> Iterator[bytes]:
    is_many = isinstance(asked[0], str)
    info = running.model(_ZERO_SHOT if is_many else _JUDGE)
    parameters: ZeroShotParameters | ClassifyParameters = ClassifyParameters()
    if is_many:
        parameters = ZeroShotParameters(labels=_LABELS, hypothesis_template=_TEMPLATE)
    for text in asked:
        item = CallItem(body=msgspec.msgpack.encode(text), remaining=60.0, scope="tenant:bench")
        call = Call(
            model=info.name,
            revision=info.revision,
            profile=info.profile,
            task=Task.ZERO_SHOT if is_many else Task.CLASSIFY,
            parameters=msgspec.msgpack.encode(parameters),
            items=[item],
        )
        yield msgspec.msgpack.encode(call)


def _gateway_runner(system: System, connections: int) -> Run:
    headers = (("authorization", f"Bearer {system.key}"), ("x-request-timeout", "60"))

    def run(asked: list[tuple[str, str]] | list[str]) -> Outcome:
        path = "/v1/zero-shot" if isinstance(asked[0], str) else "/v1/classify"
        target = Target(host="127.0.0.1", port=system.port, path=path, headers=headers)
        bodies = iter([_body(text) for text in asked])
        return asyncio.run(closed_loop(target, bodies, connections=connections, duration=120))

    return run


def _body(asked: tuple[str, str] | str) -> bytes:
    if isinstance(asked, str):
        zero_shot = {"labels": _LABELS, "hypothesis_template": _TEMPLATE}
        return msgspec.json.encode({"model": _ZERO_SHOT, "input": asked} | zero_shot)
    return msgspec.json.encode({"model": _JUDGE, "input": [asked]})


def _write_models(models: Path) -> None:
    """Write a judge of pairs over the demo encoder, which costs what a real one costs."""
    judge = {
        "kind": "head",
        "encoder": "minilm",
        "task": "classify",
        "output": "pooled",
        "labels": ["contradiction", "neutral", "entailment"],
        "weights": "head.npz",
    }
    zero_shot = {
        "kind": "algorithm",
        "algorithm": "zero-shot-entailment",
        "uses": [_JUDGE],
        "tasks": ["zero-shot"],
    }
    for name, manifest in ((_JUDGE, judge), (_ZERO_SHOT, zero_shot)):
        folder = models / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    weights = np.random.default_rng(1).standard_normal((_DIMENSIONS, 3)).astype(np.float32)
    np.savez(models / _JUDGE / "1" / "head.npz", w0=weights, b0=np.zeros(3, dtype=np.float32))
