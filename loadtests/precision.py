"""Compares bf16 and fp32 in a backend with OpenVINO with fp32 in ONNX Runtime."""

import operator
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import click
import httpx
import msgspec
import numpy as np

from loadtests.backend import RunningBackend, backend, call, calls
from loadtests.generator import CALLERS, Outcome, run_closed
from loadtests.machine import resident_mib
from loadtests.measured import demo_models, metered
from loadtests.models import copy_model
from loadtests.options import rounds
from loadtests.report import Line, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from sluicegate.wire.protocol import CALL_PATH, Done, FrameReader, ModelInfo, Task

_ENCODER, _HEAD = "minilm", "sentiment"
_RUNTIME, _EXACT, _ROUNDED = "ONNX Runtime, fp32", "OpenVINO, fp32", "OpenVINO, bf16"
_WARM_UP, _COMPARED = 300, 1000
_SUFFIX = "-bf16"
Way = tuple[RunningBackend, str]
"""A backend, and the suffix of its models' names."""


@click.command()
@click.option("--count", default=2000, help="Number of sentences in each run.")
@rounds(5)
def measure(*, count: int, rounds: int) -> None:
    """Compare bf16 and fp32 in a backend with OpenVINO with fp32 in ONNX Runtime.

    The processor time is also measured, because other load on the machine affects processor times
    less than rates.
    """
    texts = sentences((count * rounds + 3 * _WARM_UP) * 3 + _COMPARED, seed=12)
    asked = iter(texts[_COMPARED:])
    with demo_models() as models:
        copy_model(models, _ENCODER, _ENCODER + _SUFFIX, profile="bf16")
        copy_model(models, _HEAD, _HEAD + _SUFFIX, encoder=_ENCODER + _SUFFIX)
        with backend(models, provider="openvino") as one, backend(models, provider="cpu") as other:
            ways = {_RUNTIME: (other, ""), _EXACT: (one, ""), _ROUNDED: (one, _SUFFIX)}

            def run(way: Way, number: int = count) -> Outcome:
                running, suffix = way
                bodies = calls(islice(asked, number), running.model(_HEAD + suffix))
                return run_closed(running.target, bodies)

            for way in ways.values():
                run(way, _WARM_UP)
            variants = {
                what: metered(partial(run, way), server=[way[0].pid]) for what, way in ways.items()
            }
            table = table_of(in_turns(variants, rounds))
            differences = _differences(ways, texts[:_COMPARED])
        memory = {what: _memory(models, what, asked) for what in ways}
    show(
        f"bf16 on a CPU: {CALLERS} connections, {_COMPARED} texts compared",
        [row.line() | differences[row.what] | {"MiB (PSS)": memory[row.what]} for row in table],
    )


def _differences(ways: Mapping[str, Way], texts: Sequence[str]) -> dict[str, Line]:
    """Return how much vectors and labels differ from the results of ONNX Runtime."""
    vectors, labels = {}, {}
    for what, (running, suffix) in ways.items():
        found = _ask(running, running.model(_ENCODER + suffix), Task.EMBED, texts)
        rows = np.array([msgspec.json.decode(each)["embedding"] for each in found])
        vectors[what] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        found = _ask(running, running.model(_HEAD + suffix), Task.CLASSIFY, texts)
        labels[what] = [msgspec.json.decode(each)["labels"][0]["label"] for each in found]
    return {
        what: {
            "worst cosine": f"{(vectors[_RUNTIME] * vectors[what]).sum(axis=1).min():.6f}",
            "labels that differ": sum(map(operator.ne, labels[_RUNTIME], labels[what])),
        }
        for what in ways
    }


def _ask(running: RunningBackend, info: ModelInfo, task: Task, texts: Sequence[str]) -> list[bytes]:
    content = call(texts, info, task=task, remaining=60.0)
    content = httpx.post(f"{running.url}{CALL_PATH}", content=content, timeout=60).content
    done = [frame for frame in FrameReader().feed(content) if isinstance(frame, Done)]
    return [frame.result for frame in sorted(done, key=lambda frame: frame.index)]


def _memory(models: Path, what: str, texts: Iterator[str]) -> float:
    """Return the memory in MiB of a backend that serves only one encoder and its head."""
    suffix = _SUFFIX if what == _ROUNDED else ""
    own = models.parent / what
    for name in (_ENCODER + suffix, _HEAD + suffix):
        shutil.copytree(models / name, own / name, ignore=shutil.ignore_patterns(".*"))
    settings = {"provider": "cpu" if what == _RUNTIME else "openvino"}
    with backend(own, **settings):
        pass  # the first start writes the weights that later starts share
    with backend(own, **settings) as running:
        bodies = calls(islice(texts, _WARM_UP), running.model(_HEAD + suffix))
        run_closed(running.target, bodies)
        return resident_mib(running.pid)
