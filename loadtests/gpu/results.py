"""Keeps the results of a run in one file, which is written after each figure."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from backends.errors import ExecutorDied
from backends.executors.cuda import explain
from backends.model_tools.graphs.shapes import PRESETS
from loadtests.gpu.plan import (
    BATCHES,
    CANDIDATES,
    FIGURES,
    MATRIX,
    Candidate,
    Figure,
    Options,
    alone,
    in_session,
    through_gateway,
)
from loadtests.machine import Machine, this_machine
from loadtests.report import table
from wire.gpus import find_gpus

_COLUMNS = (
    *("what", "sequences/s", "aim", "tokens/s", "GPU busy", "padding", "error"),
    *("p50 ms", "p99 ms", "note"),
)
FILE = "gpu.json"
UNFINISHED = "its process died"
_SAME = ("device", "provider", "tiny")
"""Fields that must be equal for all figures of a report."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a figure. Rates are sequences and real tokens a second; latencies are seconds.

    `error` is the largest distance between a row's vector and the same row's fp32 vector from the
    CPU, divided by the length of the fp32 vector.
    """

    rate: float | None = None
    tokens_per_second: float | None = None
    busy: float | None = None
    waste: float | None = None
    p50: float | None = None
    p99: float | None = None
    error: float | None = None
    passed: bool = True
    note: str = ""


class SectionState(msgspec.Struct, frozen=True, kw_only=True):
    """How a section ended."""

    status: Literal["done", "failed", "skipped", "out of time"]
    reason: str = ""
    took: float = 0.0


class Report(msgspec.Struct, kw_only=True):
    """All results: the machine, the device, how sections ended, and the figures."""

    machine: Machine
    device: str
    provider: str
    tiny: bool
    runtime: str
    sections: dict[str, SectionState] = {}
    figures: dict[str, Measurement] = {}

    def rate(self, name: str) -> float:
        """Return the rate of a figure; 0 if it failed or was not measured."""
        found = self.figures.get(name)
        return found.rate or 0.0 if found is not None and found.passed else 0.0

    def fastest(self, model: str) -> Candidate | None:
        """Return the graph that was fastest with full batches of a model."""
        rates = {each: self.rate(in_session(model, each.name)) for each in CANDIDATES}
        timed = [each for each, rate in rates.items() if rate]
        return max(timed, key=rates.__getitem__, default=None)


class Journal:
    """Writes each figure to the file of results immediately, so that a crash loses only one figure.

    A figure that has begun is marked as failed until it ends. After a crash, a new process
    continues with the next figure, because every later run in the crashed process would fail, too.
    """

    def __init__(self, output: Path) -> None:
        self._path = output / FILE
        self.report = msgspec.json.decode(self._path.read_bytes(), type=Report)

    @staticmethod
    def begin(options: Options, runtime: str, again: Sequence[str] = ()) -> "Journal":
        """Write the file of results, with the correct figures of an earlier run in it.

        Figures of the sections in `again` are dropped.
        """
        gpus = find_gpus()
        names = [f"{gpu.name}, {gpu.memory_bytes >> 20:,} MiB" for gpu in gpus.gpus[:1]]
        report = Report(
            machine=this_machine(),
            device=f"{(*names, 'no GPU')[0]}, driver {gpus.driver or 'none'}",
            provider=options.provider,
            tiny=options.tiny,
            runtime=runtime,
        )
        path = options.output / FILE
        if path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=Report)
            if all(getattr(before, each) == getattr(report, each) for each in _SAME):
                dropped = {figure.name for figure in FIGURES if figure.section in again}
                report.sections = before.sections
                report.figures = {
                    name: each
                    for name, each in before.figures.items()
                    if each.passed and name not in dropped
                }
        _write(path, report)
        return Journal(options.output)

    def missing(self, section: str) -> list[Figure]:
        """Return the figures of a section that have not begun."""
        names = self.report.figures
        return [each for each in FIGURES if each.section == section and each.name not in names]

    def measure(self, section: str, work: Callable[[Figure], Measurement | None]) -> SectionState:
        """Measure the missing figures of a section; a figure without a result is left out.

        An error fails only its own figure. If the device has failed, the process ends.
        """
        for figure in self.missing(section):
            self.put(figure.name, Measurement(passed=False, note=UNFINISHED))
            try:
                found = work(figure)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no other base
                if isinstance(explain(error), ExecutorDied):
                    # This process can run nothing any more. The next process continues after this
                    # figure.
                    sys.exit(str(error))
                found = Measurement(passed=False, note=_first_line(error))
            self.put(figure.name, found)
        return SectionState(status="done")

    def put(self, name: str, found: Measurement | None) -> None:
        """Keep the result of a figure, or remove it."""
        self.report.figures.pop(name, None)
        if found is not None:
            self.report.figures[name] = found
        _write(self._path, self.report)

    def close(self, section: str, state: SectionState) -> None:
        """Note how a section ended."""
        self.report.sections[section] = state
        _write(self._path, self.report)


def _write(path: Path, report: Report) -> None:
    """Replace the file of results atomically."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    temporary.replace(path)


def _first_line(error: Exception) -> str:
    """Return the first line of an error, with the folders removed from file names."""
    first = str(error).strip().split("\n", 1)[0]
    text = " ".join(word.rpartition("/")[2] for word in first.split())
    return f"{type(error).__name__}: {text[:200]}"


def render(report: Report) -> str:
    """Return the report as Markdown, with the failed checks and, at the end, the ratios."""
    lines = [f"## GPU, provider {report.provider}", ""]
    lines += [f"{report.device}, {report.runtime}", report.machine.headline, ""]
    if report.tiny:
        lines += ["A dry run with toy models: the figures mean nothing.", ""]
    shown = (
        _row(figure, found)
        for figure in FIGURES
        if (found := report.figures.get(figure.name)) is not None
        and (figure.section != "check" or not found.passed)
    )
    ended = (
        f"{section}: {state.status} ({state.reason})"
        for section, state in report.sections.items()
        if state.status != "done"
    )
    return "\n".join([*lines, table(_COLUMNS, shown), "", *ended, *ratios(report)])


def ratios(report: Report) -> list[str]:
    """Return the gateway's rates divided by comparable rates.

    The comparable rates are those of the bare session, of PyTorch and of TensorRT. A fourth
    comparable rate is the highest rate that the speed of the device's matrix products allows.
    """
    lines = []
    for model, length in BATCHES.items():
        best = report.fastest(model)
        floors = {
            "bare session": report.rate(in_session(model, best.name)) if best else 0.0,
            "PyTorch alone": report.rate(alone("PyTorch", model)),
            "TensorRT alone": report.rate(alone("TensorRT", model)),
            "arithmetic limit": report.rate(MATRIX) / _operations(model, length),
        }
        served = report.rate(through_gateway(model, 64))
        lines += [
            f"{model} through the gateway / {name}: {served / floor:.2f}"
            for name, floor in floors.items()
            if served and floor
        ]
    return lines


def _operations(model: str, length: int) -> float:
    """Return the multiplications and additions of a forward pass over one sequence."""
    shape = PRESETS[model]
    dense = 4 * shape.hidden**2 + 2 * shape.hidden * shape.intermediate
    return float(shape.layers * 2 * length * (dense + 2 * length * shape.hidden))


def _row(figure: Figure, found: Measurement) -> list[str]:
    cells = [
        (found.rate, ",.0f"),
        (figure.aim, ",.0f"),
        (found.tokens_per_second, ",.0f"),
        (found.busy, ".0%"),
        (found.waste, ".1%"),
        (found.error, ".1e"),
        (found.p50 and 1000 * found.p50, ".2f"),
        (found.p99 and 1000 * found.p99, ".2f"),
    ]
    note = found.note.replace("|", "/") if found.passed else f"FAILED {found.note[:80]}"
    shown = ["-" if value is None else format(value, form) for value, form in cells]
    return [figure.name, *shown, note]
