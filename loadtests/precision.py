"""Compares bf16 and fp32 in a backend with OpenVINO with fp32 in ONNX Runtime."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import click
import httpx
import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from loadtests.backend import RunningBackend, backend, call, calls
from loadtests.generator import Outcome, run_closed
from loadtests.machine import busy_seconds, resident_mib
from loadtests.measured import demo_models, metered
from loadtests.options import connections, rounds
from loadtests.report import Line, Turn, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from wire.protocol import CALL_PATH, Done, FrameReader, ModelInfo, Task

_ENCODER, _HEAD = "minilm", "sentiment"
_RUNTIME, _EXACT, _ROUNDED = "ONNX Runtime, fp32", "OpenVINO, fp32", "OpenVINO, bf16"
_PROVIDERS = {_RUNTIME: "cpu", _EXACT: "openvino", _ROUNDED: "openvino"}
_WARM_UP, _COMPARED = 300, 1000
_SUFFIX = "-bf16"
Way = tuple[RunningBackend, str]
"""A backend, and the suffix of its models' names."""


@click.command()
@connections
@click.option("--count", default=2000, help="Number of sentences in each run.")
@rounds(5)
def measure(*, connections: int, count: int, rounds: int) -> None:
    """Measure runs of `count` sentences in turns, compare answers, measure memory and startup time.

    The processor time is also measured, because other load on the machine affects processor times
    less than rates.
    """
    texts = sentences((count * rounds + 3 * _WARM_UP) * 3 + _COMPARED, seed=12)
    asked = iter(texts[_COMPARED:])
    with demo_models() as models:
        _write_rounded(models)
        with backend(models, provider="openvino") as one, backend(models, provider="cpu") as other:
            ways = {_RUNTIME: (other, ""), _EXACT: (one, ""), _ROUNDED: (one, _SUFFIX)}

            def variant(running: RunningBackend, suffix: str) -> Callable[[], Turn]:
                def run(number: int = count) -> Outcome:
                    bodies = calls(islice(asked, number), running.model(_HEAD + suffix))
                    return run_closed(running.target, bodies, connections=connections)

                run(_WARM_UP)
                return metered(run, server=[running.pid])

            variants = {what: variant(*way) for what, way in ways.items()}
            table = table_of(in_turns(variants, rounds))
            differences = _differences(ways, texts[:_COMPARED])
        weights = _weights(models, asked, connections)
    show(
        f"bf16 on a CPU: {connections} connections, {_COMPARED} texts compared",
        [row.line() | differences[row.what] | weights[row.what] for row in table],
    )


def _differences(ways: dict[str, Way], texts: Sequence[str]) -> dict[str, Line]:
    """Return how much vectors and labels differ from the results of ONNX Runtime."""
    vectors, labels = {}, {}
    for what, (running, suffix) in ways.items():
        found = _ask(running, running.model(_ENCODER + suffix), Task.EMBED, texts)
        vectors[what] = np.array([msgspec.json.decode(each)["embedding"] for each in found])
        found = _ask(running, running.model(_HEAD + suffix), Task.CLASSIFY, texts)
        labels[what] = [msgspec.json.decode(each)["labels"][0]["label"] for each in found]
    return {
        what: {
            "worst cosine": f"{_cosines(vectors[_RUNTIME], vectors[what]).min():.6f}",
            "labels that differ": sum(
                a != b for a, b in zip(labels[_RUNTIME], labels[what], strict=True)
            ),
        }
        for what in ways
    }


def _cosines(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: NDArray[np.float64] = (one * other).sum(axis=1) / lengths
    return cosines


def _ask(running: RunningBackend, info: ModelInfo, task: Task, texts: Sequence[str]) -> list[bytes]:
    content = call(texts, info, task=task, remaining=60.0)
    content = httpx.post(f"{running.url}{CALL_PATH}", content=content, timeout=60).content
    done = [frame for frame in FrameReader().feed(content) if isinstance(frame, Done)]
    return [frame.result for frame in sorted(done, key=lambda frame: frame.index)]


def _weights(models: Path, texts: Iterator[str], connections: int) -> dict[str, Line]:
    """Return the processor time that a backend with one encoder takes to start, and its memory."""
    lines: dict[str, Line] = {}
    for what, provider in _PROVIDERS.items():
        suffix = _SUFFIX if what == _ROUNDED else ""
        own = models.parent / what
        for name in (_ENCODER + suffix, _HEAD + suffix):
            shutil.copytree(models / name, own / name, ignore=shutil.ignore_patterns(".*"))
        lines[what] = {}
        for start in ("first start, s", "next start, s"):
            with backend(own, provider=provider) as running:
                lines[what][start] = busy_seconds(running.pid)
                bodies = calls(islice(texts, _WARM_UP), running.model(_HEAD + suffix))
                run_closed(running.target, bodies, connections=connections)
                lines[what]["MiB (PSS)"] = resident_mib(running.pid)
    return lines


def _write_rounded(models: Path) -> None:
    """Write a second demo encoder, and a head over it, both with the profile bf16."""
    changes = {_ENCODER: {"profile": "bf16"}, _HEAD: {"encoder": _ENCODER + _SUFFIX}}
    for name, changed in changes.items():
        copy = Path(shutil.copytree(models / name, models / (name + _SUFFIX)))
        for manifest in copy.glob("*/model.yaml"):
            content = yaml.safe_load(manifest.read_bytes())
            manifest.write_text(yaml.safe_dump(content | changed))
