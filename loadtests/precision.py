"""Measures bf16 beside fp32 through one backend over OpenVINO, and beside ONNX Runtime's fp32."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import httpx
import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from backends.model_tools.demo.build import build_demo_models
from backends.protocol import (
    CALL_PATH,
    Call,
    CallItem,
    ClassifyParameters,
    Done,
    EmbedParameters,
    FrameReader,
    ModelInfo,
    Task,
)
from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.generator import Outcome
from loadtests.machine import busy_seconds, resident_mib, this_machine
from loadtests.options import connections, rounds
from loadtests.report import rows, show
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
        with contextlib.ExitStack() as stack:
            one = stack.enter_context(backend(models, provider="openvino"))
            other = stack.enter_context(backend(models, provider="cpu"))
            ways = {_RUNTIME: (other, ""), _EXACT: (one, ""), _ROUNDED: (one, _SUFFIX)}
            asked = iter(texts[_COMPARED:])
            measured = _in_turns(ways, asked, connections=connections, count=count, rounds=rounds)
            show(f"bf16 on a CPU: {connections} connections", rows(measured), {}, this_machine())
            _compare(ways, texts[:_COMPARED])
        _weigh(models, asked, connections)


def _in_turns(
    ways: dict[str, tuple[RunningBackend, str]],
    texts: Iterator[str],
    *,
    connections: int,
    count: int,
    rounds: int,
) -> dict[str, list[Outcome]]:
    def run(what: str, asked: int) -> Outcome:
        running, suffix = ways[what]
        bodies = calls([next(texts) for _ in range(asked)], running.model(_HEAD + suffix))
        return run_closed(running, bodies, connections=connections, duration=120)

    for what in ways:
        run(what, _WARM_UP)
    measured: dict[str, list[Outcome]] = {what: [] for what in ways}
    busy = dict.fromkeys(ways, 0.0)
    for number in range(rounds):
        for what in list(ways)[:: -1 if number % 2 else 1]:
            before = busy_seconds(ways[what][0].pid)
            measured[what].append(run(what, count))
            busy[what] += busy_seconds(ways[what][0].pid) - before
    print("\n| what | ms of processor time a sentence | of the baseline |\n|---|---|---|")
    for what, seconds in busy.items():
        share = seconds / busy[_RUNTIME]
        print(f"| {what} | {1000 * seconds / count / rounds:.2f} | {share:.2f} |")
    return measured


def _compare(ways: dict[str, tuple[RunningBackend, str]], texts: Sequence[str]) -> None:
    """Print how far vectors and labels are from those of ONNX Runtime."""
    vectors, labels = {}, {}
    for what, (running, suffix) in ways.items():
        found = _ask(running, running.model(_ENCODER + suffix), Task.EMBED, texts)
        vectors[what] = np.array([msgspec.json.decode(each)["embedding"] for each in found])
        found = _ask(running, running.model(_HEAD + suffix), Task.CLASSIFY, texts)
        labels[what] = [msgspec.json.decode(each)["labels"][0]["label"] for each in found]
    print(f"\n| {len(texts)} texts | largest difference | worst cosine | labels that differ |")
    print("|---|---|---|---|")
    for what in (_EXACT, _ROUNDED):
        worst = _cosines(vectors[_RUNTIME], vectors[what]).min()
        apart = np.abs(vectors[_RUNTIME] - vectors[what]).max()
        flips = sum(a != b for a, b in zip(labels[_RUNTIME], labels[what], strict=True))
        print(f"| {what} | {apart:.2g} | {worst:.6f} | {flips} |")


def _cosines(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: NDArray[np.float64] = (one * other).sum(axis=1) / lengths
    return cosines


def _ask(running: RunningBackend, info: ModelInfo, task: Task, texts: Sequence[str]) -> list[bytes]:
    parameters = EmbedParameters() if task is Task.EMBED else ClassifyParameters()
    call = Call(
        model=info.name,
        revision=info.revision,
        profile=info.profile,
        task=task,
        parameters=msgspec.msgpack.encode(parameters),
        items=[
            CallItem(body=msgspec.msgpack.encode(text), remaining=60.0, scope="tenant:bench")
            for text in texts
        ],
    )
    url = f"http://127.0.0.1:{running.port}{CALL_PATH}"
    content = httpx.post(url, content=msgspec.msgpack.encode(call), timeout=60).content
    done = [frame for frame in FrameReader().feed(content) if isinstance(frame, Done)]
    return [frame.result for frame in sorted(done, key=lambda frame: frame.index)]


def _weigh(models: Path, texts: Iterator[str], connections: int) -> None:
    """Print the processor time that a backend with one encoder starts in, and its memory later."""
    print("\n| what | first start | next start | MiB (PSS) |\n|---|---|---|---|")
    for what, provider in _PROVIDERS.items():
        suffix = _SUFFIX if what == _ROUNDED else ""
        with tempfile.TemporaryDirectory() as folder:
            for name in (_ENCODER + suffix, _HEAD + suffix):
                shutil.copytree(models / name, Path(folder, name), ignore=_HIDDEN)
            starts, memory = [], 0.0
            for _ in range(2):
                with backend(Path(folder), provider=provider) as running:
                    starts.append(busy_seconds(running.pid))
                    own = [next(texts) for _ in range(_WARM_UP)]
                    bodies = calls(own, running.model(_HEAD + suffix))
                    run_closed(running, bodies, connections=connections, duration=120)
                    memory = resident_mib(running.pid)
            print(f"| {what} | {starts[0]:.1f} s | {starts[1]:.1f} s | {memory:.0f} |")


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
