"""Measures bf16 beside fp32 through one backend over OpenVINO, and beside ONNX Runtime's fp32."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import click
import httpx
import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from backends.model_tools.demo.build import build_demo_models
from backends.protocol import CALL_PATH, Done, FrameReader, ModelInfo, Task
from loadtests.backend import RunningBackend, backend, call, calls, run_closed
from loadtests.generator import Outcome
from loadtests.machine import busy_seconds, resident_mib
from loadtests.options import connections, rounds
from loadtests.report import print_table, rows, show
from loadtests.turns import in_turns
from loadtests.workload import sentences

_ENCODER, _HEAD = "minilm", "sentiment"
_RUNTIME, _EXACT, _ROUNDED = "ONNX Runtime, fp32", "OpenVINO, fp32", "OpenVINO, bf16"
_PROVIDERS = {_RUNTIME: "cpu", _EXACT: "openvino", _ROUNDED: "openvino"}
_WARM_UP, _COMPARED = 300, 1000
_SUFFIX = "-bf16"
_HIDDEN = shutil.ignore_patterns(".*")


@click.command()
@connections
@click.option("--count", default=2000, help="Sentences of each run.")
@rounds(5)
def measure(*, connections: int, count: int, rounds: int) -> None:
    """Measure `count` sentences a run, in turns, and compare the answers; then each way alone.

    Processor time is measured, too: other load on the machine changes it less than it does rates.
    """
    texts = sentences((count * rounds + 3 * _WARM_UP) * 3 + _COMPARED, seed=12)
    with tempfile.TemporaryDirectory() as folder:
        models = _write_models(Path(folder))
        with backend(models, provider="openvino") as one, backend(models, provider="cpu") as other:
            ways = {_RUNTIME: (other, ""), _EXACT: (one, ""), _ROUNDED: (one, _SUFFIX)}
            asked = iter(texts[_COMPARED:])
            runs = _in_turns(ways, asked, connections=connections, count=count, rounds=rounds)
            outcomes = {what: [each for each, _ in own] for what, own in runs.items()}
            show(f"bf16 on a CPU: {connections} connections", rows(outcomes))
            busy = {what: sum(seconds for _, seconds in own) for what, own in runs.items()}
            print()
            print_table(
                ("what", "ms of processor time a sentence", "of the baseline"),
                [
                    (what, f"{1e3 * used / count / rounds:.2f}", f"{used / busy[_RUNTIME]:.2f}")
                    for what, used in busy.items()
                ],
            )
            _compare(ways, texts[:_COMPARED])
        _weigh(models, asked, connections)


def _in_turns(
    ways: dict[str, tuple[RunningBackend, str]],
    texts: Iterator[str],
    *,
    connections: int,
    count: int,
    rounds: int,
) -> dict[str, list[tuple[Outcome, float]]]:
    """Return each run, and the processor time of its backend."""

    def run(what: str, asked: int = count) -> tuple[Outcome, float]:
        running, suffix = ways[what]
        bodies = calls(islice(texts, asked), running.model(_HEAD + suffix))
        before = busy_seconds(running.pid)
        outcome = run_closed(running, bodies, connections=connections)
        return outcome, busy_seconds(running.pid) - before

    for what in ways:
        run(what, _WARM_UP)
    return in_turns({what: partial(run, what) for what in ways}, rounds)


def _compare(ways: dict[str, tuple[RunningBackend, str]], texts: Sequence[str]) -> None:
    """Print how far vectors and labels differ from the results of ONNX Runtime."""
    vectors, labels = {}, {}
    for what, (running, suffix) in ways.items():
        found = _ask(running, running.model(_ENCODER + suffix), Task.EMBED, texts)
        vectors[what] = np.array([msgspec.json.decode(each)["embedding"] for each in found])
        found = _ask(running, running.model(_HEAD + suffix), Task.CLASSIFY, texts)
        labels[what] = [msgspec.json.decode(each)["labels"][0]["label"] for each in found]
    lines = []
    for what in (_EXACT, _ROUNDED):
        worst = _cosines(vectors[_RUNTIME], vectors[what]).min()
        apart = np.abs(vectors[_RUNTIME] - vectors[what]).max()
        flips = sum(a != b for a, b in zip(labels[_RUNTIME], labels[what], strict=True))
        lines.append((what, f"{apart:.2g}", f"{worst:.6f}", flips))
    print()
    columns = ("largest difference", "worst cosine", "labels that differ")
    print_table((f"{len(texts)} texts", *columns), lines)


def _cosines(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: NDArray[np.float64] = (one * other).sum(axis=1) / lengths
    return cosines


def _ask(running: RunningBackend, info: ModelInfo, task: Task, texts: Sequence[str]) -> list[bytes]:
    content = call(texts, info, task=task, remaining=60.0)
    content = httpx.post(f"{running.url}{CALL_PATH}", content=content, timeout=60).content
    done = [frame for frame in FrameReader().feed(content) if isinstance(frame, Done)]
    return [frame.result for frame in sorted(done, key=lambda frame: frame.index)]


def _weigh(models: Path, texts: Iterator[str], connections: int) -> None:
    """Print the processor time that a backend with one encoder starts in, and its memory later."""
    lines = []
    for what, provider in _PROVIDERS.items():
        suffix = _SUFFIX if what == _ROUNDED else ""
        with tempfile.TemporaryDirectory() as folder:
            for name in (_ENCODER + suffix, _HEAD + suffix):
                shutil.copytree(models / name, Path(folder, name), ignore=_HIDDEN)
            starts, memory = [], 0.0
            for _ in range(2):
                with backend(Path(folder), provider=provider) as running:
                    starts.append(busy_seconds(running.pid))
                    bodies = calls(islice(texts, _WARM_UP), running.model(_HEAD + suffix))
                    run_closed(running, bodies, connections=connections)
                    memory = resident_mib(running.pid)
            lines.append((what, *(f"{each:.1f} s" for each in starts), f"{memory:.0f}"))
    print()
    print_table(("what", "first start", "next start", "MiB (PSS)"), lines)


def _write_models(root: Path) -> Path:
    """Write the demo encoder and a head over it twice, once to be computed in bf16."""
    build_demo_models(root / "demo", print)
    models = root / "models"
    for name, changes in (
        (_ENCODER, {"profile": "bf16"}),
        (_HEAD, {"encoder": _ENCODER + _SUFFIX}),
    ):
        source = root / "demo" / name
        shutil.copytree(source, models / name)
        copy = shutil.copytree(source, models / (name + _SUFFIX))
        for manifest in copy.glob("*/model.yaml"):
            content = yaml.safe_load(manifest.read_bytes())
            manifest.write_text(yaml.safe_dump(content | changes))
    return models
