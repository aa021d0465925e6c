"""Compares the throughput in process with that of reference libraries, with the same weights."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import click
import httpx
import msgspec
import numpy as np

from loadtests.libraries.shapes import LABELS, SHAPES, THREADS, THRESHOLD, Shape
from loadtests.libraries.texts import TextMaker
from loadtests.machine import processor_seconds
from loadtests.options import rounds
from loadtests.report import Line, show
from loadtests.turns import in_turns, paired
from sluicegate.backends.bulk.runner import BulkResult, BulkRunner
from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.importing.import_model import import_model
from sluicegate.backends.settings import BackendSettings
from testing.loopback import is_answered
from testing.ports import free_port
from testing.system import System
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_MODEL, _THEIRS, _OURS = "model", "library", "Sluicegate"
_COMPARED, _TOLERANCE = 8, 1e-3
_PER_REQUEST = 256
_ENTITIES = {"task": "entities", "parameters": {"labels": LABELS, "threshold": THRESHOLD}}
Spent = tuple[float, float]
"""Seconds of wall time, and of processor time."""


class _Library:
    """A library in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._sink = cast("IO[bytes]", process.stdin)
        self._source = cast("IO[bytes]", process.stdout)

    def wait(self) -> None:
        """Wait until the library has loaded the model."""
        if self._source.readline() != b"ready\n":
            raise click.ClickException("the library failed; run `loadtests.libraries.library`")

    def ask(self, texts: Sequence[str], *, answers: bool = False) -> tuple[Spent, list[Any]]:
        """Return what the texts cost, and the answers if they are wanted."""
        self._sink.write(msgspec.json.encode({"texts": texts, "answers": answers}) + b"\n")
        self._sink.flush()
        found = msgspec.json.decode(self._source.readline())
        wall, used = found["spent"]
        return (wall, used), found["answers"]


def _command(shape: Shape, module: str, *arguments: object) -> list[str]:
    environment = ".venv-gliner" if shape.kind == "entities" else ".venv-parity"
    python = _ROOT / environment / "bin" / "python"
    return [str(python), "-m", f"loadtests.libraries.{module}", *map(str, arguments)]


@contextlib.contextmanager
def _library(shape: Shape, tokenizer: Path, folder: Path) -> Iterator[_Library]:
    """Run a library; it writes the folder if that does not exist yet."""
    with subprocess.Popen(
        _command(shape, "library", shape.name, tokenizer, folder),
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        library = _Library(process)
        library.wait()
        yield library


@contextlib.contextmanager
def _imported(folder: Path) -> Iterator[Path]:
    """Import a folder; yield the repository."""
    with tempfile.TemporaryDirectory() as place:
        models = Path(place) / "models"
        models.mkdir()
        import_model(
            folder,
            BackendSettings(models=models, threads=THREADS),
            name=_MODEL,
            given={"truncate": True},
            variant=None,
            dry_run=False,
            echo=lambda _: None,
        )
        yield models


def _items(shape: Shape, texts: Sequence[str]) -> list[Any]:
    if shape.kind in {"sparse", "multi_vector"}:
        return [{"input": text, "output": shape.kind} for text in texts]
    return list(texts)


def _run(runner: BulkRunner, shape: Shape, texts: Sequence[str]) -> tuple[Spent, list[Any]]:
    items = _items(shape, texts)
    wall, used = time.perf_counter(), time.process_time()
    found = runner.run(items)
    spent = time.perf_counter() - wall, time.process_time() - used
    return spent, [each.value if isinstance(each, BulkResult) else each for each in found]


def _difference(shape: Shape, ours: list[Any], library: list[Any]) -> float:
    """Return the largest difference of values; infinite if places or labels differ."""
    return max(_apart(shape, one, other) for one, other in zip(ours, library, strict=True))


def _apart(shape: Shape, one: Any, other: Any) -> float:
    if shape.kind == "entities":
        found = [(e["label"], e["start"], e["end"], e["score"]) for e in one["entities"]]
        if [e[:3] for e in found] != [tuple(e[:3]) for e in other]:
            return float("inf")
        left, right = [e[3] for e in found], [e[3] for e in other]
    elif shape.kind == "sparse":
        own = dict(zip(one["sparse"]["indices"], one["sparse"]["values"], strict=True))
        theirs = {int(place): value for place, value in other}
        places = {*own, *theirs}  # a weight near zero may be left out
        left, right = [own.get(p, 0.0) for p in places], [theirs.get(p, 0.0) for p in places]
    else:
        left, right = one.get("multi_vector", one.get("embedding")), other
    first, second = np.array(left, dtype=float), np.array(right, dtype=float)
    if first.shape != second.shape:
        return float("inf")
    return float(np.abs(first - second).max(initial=0.0))


@click.command("libraries")
@click.option("--only", multiple=True, help="Only the models whose names contain this.")
@click.option("--scale", default=1.0, help="Run so many times as many texts.")
@rounds(3)
def measure(*, only: tuple[str, ...], scale: float, rounds: int) -> None:
    """Compare models in process with their reference libraries: same weights, texts and threads.

    Texts have equal or mixed lengths, and no text is sent twice. The ratios are medians over the
    rounds. The answers to some texts are compared first.
    """
    tokenizer = find_source() / "tokenizer.json"
    lines: list[Line] = []
    for each in SHAPES:
        if only and not any(name.lower() in each.name.lower() for name in only):
            continue
        shape = msgspec.structs.replace(each, texts=max(_COMPARED, round(each.texts * scale)))
        maker = TextMaker(tokenizer, seed=5)
        asked: dict[str, Any] = _ENTITIES if shape.kind == "entities" else {"task": "embed"}
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
            library = stack.enter_context(_library(shape, tokenizer, folder))
            models = stack.enter_context(_imported(folder))
            with BulkRunner(models, model=_MODEL, threads=THREADS, **asked) as runner:
                lines += _in_process(shape, maker, library, runner, rounds)
            if shape.kind == "static":
                lines.append(_over_http(shape, maker, folder, models, rounds))
    show("Libraries: throughput with the same weights and texts", lines, keep=not only)


def _in_process(
    shape: Shape, maker: TextMaker, library: _Library, runner: BulkRunner, rounds: int
) -> Iterator[Line]:
    texts = [*maker.equal(_COMPARED), *maker.mixed(_COMPARED)]
    _, ours = _run(runner, shape, texts)
    apart = _difference(shape, ours, library.ask(texts, answers=True)[1])
    if not apart <= _TOLERANCE:
        raise click.ClickException(f"answers of `{shape.name}` differ by {apart}")
    for lengths, make in (("equal", maker.equal), ("mixed", maker.mixed)):
        given = [make(shape.texts) for _ in range(rounds)]
        runs = in_turns(
            {
                _THEIRS: partial(_next, iter(given), lambda texts: library.ask(texts)[0]),
                _OURS: partial(_next, iter(given), lambda texts: _run(runner, shape, texts)[0]),
            },
            rounds,
        )
        yield _line(shape, lengths, runs) | {"largest difference": apart}


def _next(loads: Iterator[list[str]], run: Callable[[list[str]], Spent]) -> Spent:
    return run(next(loads))


def _over_http(shape: Shape, maker: TextMaker, folder: Path, models: Path, rounds: int) -> Line:
    """Compare requests of many texts with the library behind aiohttp."""
    port = free_port()
    command = _command(shape, "served", folder, port)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, cwd=_ROOT))
        stack.callback(process.terminate)
        system = stack.enter_context(System(models.parent / "data", models=models))
        headers = {"authorization": f"Bearer {system.key}"}
        client = stack.enter_context(httpx.Client(timeout=60, headers=headers))
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_answered(url), within=60, what="the library is ready")

        def post(target: str, pids: Sequence[int], texts: Sequence[str]) -> Spent:
            bodies = [
                msgspec.json.encode({"model": _MODEL, "input": list(part)})
                for part in (
                    texts[i : i + _PER_REQUEST] for i in range(0, len(texts), _PER_REQUEST)
                )
            ]
            wall, used = time.perf_counter(), processor_seconds(*pids)
            for body in bodies:
                client.post(target, content=body).raise_for_status()
            return time.perf_counter() - wall, processor_seconds(*pids) - used

        own = [each.pid for each in system.processes()]
        given = [maker.mixed(shape.texts) for _ in range(rounds)]
        theirs = partial(post, url, [process.pid])
        ours = partial(post, f"{system.url}/v1/embed", own)
        runs = in_turns(
            {
                _THEIRS: partial(_next, iter(given), theirs),
                _OURS: partial(_next, iter(given), ours),
            },
            rounds,
        )
    return _line(shape, f"mixed, HTTP, {_PER_REQUEST} a request", runs)


def _line(shape: Shape, lengths: str, runs: Mapping[str, Sequence[Spent]]) -> Line:
    """Return the rates of both, and how many times as fast ours is."""
    theirs, ours = runs[_THEIRS], runs[_OURS]
    return {
        "model": shape.name,
        "layers": shape.layers or "all",
        "lengths": lengths,
        f"{_THEIRS}, texts/s": shape.texts / median(wall for wall, _ in theirs),
        f"{_OURS}, texts/s": shape.texts / median(wall for wall, _ in ours),
        "ratio": paired([wall for wall, _ in theirs], [wall for wall, _ in ours]),
        "by processor time": paired([used for _, used in theirs], [used for _, used in ours]),
    }
