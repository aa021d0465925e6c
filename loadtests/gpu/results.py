"""Keeps the results of a run in one file, and prints them as a table."""

import contextlib
from collections import ChainMap
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import msgspec

from loadtests.gpu.plan import (
    CANDIDATES,
    MATRIX,
    PRESETS,
    TOKENS,
    Candidate,
    Options,
    alone,
    in_session,
    through_gateway,
)
from loadtests.machine import Machine, this_machine
from loadtests.report import Line, milliseconds, show
from sluicegate.wire.gpus import find_gpus

FILE = "gpu.json"
_RUNTIMES = ("onnxruntime-gpu", "onnxruntime", "tensorrt-cu13", "torch", "transformers")


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


Measuring = tuple[str, Callable[[], Measurement | None]]
"""The name of a figure, and a function that measures it. A figure without a result is left out."""


class Section(msgspec.Struct, kw_only=True):
    """How a section ended, and its figures by name."""

    status: Literal["done", "failed", "skipped", "unfinished"] = "unfinished"
    reason: str = "no time was left"
    figures: dict[str, Measurement] = {}


class Report(msgspec.Struct, kw_only=True):
    """All results: the machine, the device, and the sections."""

    machine: Machine
    device: str
    provider: str
    tiny: bool
    runtime: str
    sections: dict[str, Section] = {}

    @property
    def figures(self) -> dict[str, Measurement]:
        """The figures of all sections."""
        return dict(ChainMap(*(section.figures for section in self.sections.values())))

    def rate(self, name: str) -> float:
        """Return the rate of a figure; 0 if it failed or was not measured."""
        found = self.figures.get(name)
        return found.rate or 0.0 if found is not None and found.passed else 0.0

    def fastest(self, model: str) -> Candidate | None:
        """Return the graph that was fastest with full batches of a model."""
        rates = {each: self.rate(in_session(model, each.name)) for each in CANDIDATES}
        timed = [each for each, rate in rates.items() if rate]
        return max(timed, key=rates.__getitem__, default=None)


def begin(options: Options, *, again: Sequence[str] = ()) -> Report:
    """Return a report with the results of an earlier run on the same device.

    Failed figures of unfinished sections, and the sections in `again`, are dropped.
    """
    gpus = find_gpus()
    names = [f"{gpu.name}, {gpu.memory_bytes >> 20:,} MiB" for gpu in gpus.gpus[:1]]
    report = Report(
        machine=this_machine(),
        device=f"{(*names, 'no GPU')[0]}, driver {gpus.driver or 'none'}",
        provider=options.provider,
        tiny=options.tiny,
        runtime=_runtimes(),
    )
    path = options.output / FILE
    before = msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else report
    is_same = (before.device, before.provider, before.tiny)
    if is_same == (report.device, report.provider, report.tiny):
        report.sections = {
            name: each for name, each in before.sections.items() if name not in again
        }
    for section in report.sections.values():
        if section.status != "done":
            section.figures = {n: each for n, each in section.figures.items() if each.passed}
    write(report, options.output)
    return report


def _runtimes() -> str:
    """Return the versions of the installed runtimes."""
    found = []
    for name in _RUNTIMES:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def write(report: Report, output: Path) -> None:
    """Replace the file of results."""
    encoded = msgspec.json.format(msgspec.json.encode(report))
    (output / FILE).write_bytes(encoded + b"\n")


def show_report(report: Report) -> None:
    """Print the figures, except the checks that passed, and how sections ended."""
    lines: list[Line] = [
        {
            "what": name,
            "sequences/s": found.rate,
            "tokens/s": found.tokens_per_second,
            "GPU busy": found.busy,
            "padding": found.waste,
            "error": found.error,
            "p50 ms": found.p50 and milliseconds(found.p50),
            "p99 ms": found.p99 and milliseconds(found.p99),
            "note": found.note.replace("|", "/") if found.passed else f"FAILED {found.note[:80]}",
        }
        for section, each in report.sections.items()
        for name, found in each.figures.items()
        if section != "check" or not found.passed
    ]
    notes = [
        f"{name}: {section.status} ({section.reason})"
        for name, section in report.sections.items()
        if section.status != "done"
    ]
    if report.tiny:
        notes.append("A dry run with toy models: the figures mean nothing.")
    title = f"GPU, provider {report.provider}: {report.device}, {report.runtime}"
    show(title, lines, *notes, *ratios(report), keep=False)


def ratios(report: Report) -> list[str]:
    """Return the gateway's rates divided by comparable rates.

    The comparable rates are those of the bare session, of PyTorch and of TensorRT. A fourth
    comparable rate is the highest rate that the speed of the device's matrix products allows.
    """
    lines = []
    for model, length in TOKENS.items():
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
