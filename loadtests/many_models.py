"""Measures cold loads: a hundred models on a backend whose memory holds a third of them."""

import itertools
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec

from loadtests.backend import RunningBackend, backend
from loadtests.generator import OK, Answer, percentile
from loadtests.machine import resident_mib
from loadtests.measured import backends_of, demo_models, target_of
from loadtests.open_loop import run_open
from loadtests.options import duration, rounds
from loadtests.report import Line, milliseconds, show
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from testing.loopback import get
from testing.system import System

_MODEL = "minilm"
_UNAVAILABLE = 503
_LOADS = (
    "sluicegate_backend_model_load_duration_seconds_count",
    "sluicegate_backend_model_load_duration_seconds_sum",
)
_COUNTED = re.compile(r"^(sluicegate_backend_model_\w+?)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@click.command("many-models")
@click.option("--models", "count", default=100, help="Number of models.")
@click.option("--rate", default=20.0, help="Requests a second.")
@click.option("--exponent", default=1.5, help="Exponent of the Zipf distribution of models.")
@duration(20.0)
@rounds(3)
def measure(*, count: int, rate: float, exponent: float, duration: float, rounds: int) -> None:
    """Send requests for many models, whose popularity is Zipf's, through the gateway.

    The memory holds a third of the models. In each round, a first run has only the requests for the
    most popular tenth of the models, and a second run has all requests.
    """
    texts = iter(sentences(int(3 * rounds * rate * duration) + 8 * count, seed=15))
    names = [f"model-{number:03}" for number in range(count)]
    popular = names[: count // 10]
    asked = _asked(names, int(rate * duration), exponent)
    warm = [name for name in asked if name in popular]

    def run(system: System, asked: Sequence[str], seconds: float) -> list[tuple[Answer, str]]:
        bodies = (
            msgspec.json.encode({"model": name, "input": next(texts)})
            for name in itertools.cycle(asked)
        )
        target = target_of(system, "/v1/embed")
        answers = run_open(target, bodies, rate=len(asked) / seconds, duration=seconds)
        return list(zip(answers, itertools.cycle(asked), strict=False))

    with demo_models() as demo:
        models = demo.parent / "many"
        size = _copy(demo, models, names)
        memory = {"SLUICEGATE_BACKEND_MODEL_MEMORY_BYTES": str(size * count // 3)}
        with System(models.parent / "data", models=models, environment=memory) as system:
            (running,) = backends_of(system)
            run(system, names, count / 3)  # the memory is full
            variants = {
                "alone": partial(run, system, warm, duration),
                "all": partial(run, system, asked, duration),
            }
            before = _counts(running)
            turns = in_turns(variants, rounds)
            loads, seconds = (_counts(running)[name] - before[name] for name in _LOADS)
            resident = resident_mib(running.pid)
    alone = [[answer for answer, _ in each] for each in turns["alone"]]
    mixed = [[answer for answer, name in each if name in popular] for each in turns["all"]]
    others = [[answer for answer, name in each if name not in popular] for each in turns["all"]]
    ratio = paired(list(map(_p95, mixed)), list(map(_p95, alone)))
    show(
        f"Many models: {count} models, a third in memory, "
        f"{rate:g} requests a second, Zipf {exponent:g}",
        [
            _line("popular models, alone", alone),
            _line("popular models, beside the others", mixed),
            _line("the other models", others),
        ],
        f"{loads:.0f} loads of {milliseconds(seconds / max(loads, 1))} ms on average. "
        f"p95 of popular models beside the others: {ratio:.2f} times. "
        f"Memory of the backend (PSS): {resident:.0f} MiB.",
    )


def _copy(demo: Path, models: Path, names: Sequence[str]) -> int:
    """Link the demo encoder under each name, as it is after its first load; return its size."""
    first = models / names[0]
    shutil.copytree(demo / _MODEL, first)
    size = sum(p.stat().st_size for p in (first / "1").iterdir() if p.suffix != ".json")
    with backend(models, model_memory_bytes=str(10**12)):
        pass  # packs and qualifies it
    for name in names[1:]:
        shutil.copytree(first, models / name, copy_function=os.link)
    return size


def _asked(names: Sequence[str], count: int, exponent: float) -> list[str]:
    """Return the models of `count` requests."""
    weights = [(rank + 1) ** -exponent for rank in range(len(names))]
    return random.Random(7).choices(names, weights, k=count)


def _answered(answers: Iterable[Answer]) -> list[float]:
    return sorted(answer.latency for answer in answers if answer.status == OK)


def _p95(answers: Iterable[Answer]) -> float:
    return percentile(_answered(answers), 0.95)


def _line(what: str, runs: Iterable[Sequence[Answer]]) -> Line:
    answers = list(itertools.chain(*runs))
    answered = _answered(answers)
    return {
        "what": what,
        "requests": len(answers),
        "p50 ms": milliseconds(percentile(answered, 0.5)),
        "p95 ms": milliseconds(percentile(answered, 0.95)),
        "p99 ms": milliseconds(percentile(answered, 0.99)),
        "most ms": milliseconds(answered[-1]) if answered else None,
        "outcomes": dict(Counter(map(_outcome, answers))),
    }


def _outcome(answer: Answer) -> str:
    if answer.status == _UNAVAILABLE and b"\nretry-after:" in answer.head:
        return "503 with Retry-After"
    return str(answer.status)


def _counts(running: RunningBackend) -> Counter[str]:
    """Return the backend's metrics of loads, summed over labels."""
    found: Counter[str] = Counter()
    text = get(f"{running.url}/metrics", timeout=60).text
    for name, value in _COUNTED.findall(text):
        found[name] += float(value)  # type: ignore[assignment]  # seconds, too
    return found
