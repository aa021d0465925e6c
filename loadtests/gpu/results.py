"""Keeps the results of a run in one file, which is written after each figure."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from backends.errors import ExecutorDied
from backends.executors.cuda import explain
from backends.model_tools.graphs.shapes import PRESETS
from loadtests.gpu.device import Device, this_device
from loadtests.gpu.plan import (
    CANDIDATES,
    FIGURES,
    FULL_BATCH,
    LARGE,
    SMALL,
    Candidate,
    Figure,
    Options,
    Section,
    figures_of,
)
from loadtests.machine import Machine, this_machine

_MODELS = ((SMALL, 24), (LARGE, 128))
_COLUMNS = (
    *("what", "sequences/s", "aim", "tokens/s", "GPU busy", "padding", "error"),
    *("p50 ms", "p99 ms", "note"),
)
FILE = "gpu.json"
UNFINISHED = "its process died"
_RECORDS = Path(__file__).parents[1] / "results"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. Rates are sequences and real tokens a second; latencies are seconds.

    `error` is the largest distance of a row from fp32 on the CPU, relative to the row's length.
    """

    what: str
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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything: the machine, the device, how sections ended, and what was measured."""

    machine: Machine
    device: Device
    provider: str
    tiny: bool
    runtime: str = ""
    sections: dict[Section, SectionState] = {}
    figures: list[Measurement] = []

    def figure(self, what: str) -> Measurement | None:
        """Return a figure; `None` where it was not measured."""
        return next((each for each in self.figures if each.what == what), None)


def open_report(options: Options, again: Sequence[Section], runtime: str) -> Report:
    """Begin the file of results, and return what an earlier run left in it.

    What failed is tried again, and so are the sections of `again`.
    """
    before = read_report(options.output / FILE)
    report = Report(
        machine=this_machine(),
        device=this_device(),
        provider=options.provider,
        tiny=options.tiny,
        runtime=runtime,
    )
    if before is not None and _is_comparable(before, report):
        names = {figure.name for figure in FIGURES if figure.section in again}
        kept = [each for each in before.figures if each.passed and each.what not in names]
        report = msgspec.structs.replace(report, sections=before.sections, figures=kept)
    write_report(options, report)
    return report


def known_figures(report: Report, records: Path = _RECORDS) -> list[str]:
    """Return the figures that earlier records have of the same card."""
    found = [read_report(path) for path in sorted(records.glob("*gpu*.json"))]
    return sorted(
        {
            figure.what
            for each in found
            if each is not None and _is_comparable(each, report)
            for figure in each.figures
            if figure.passed
        }
    )


def _is_comparable(one: Report, other: Report) -> bool:
    return (one.device.name, one.provider, one.tiny) == (
        other.device.name,
        other.provider,
        other.tiny,
    )


def read_report(path: Path) -> Report | None:
    """Return what a file of results says; `None` where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def write_report(options: Options, report: Report) -> None:
    """Replace the file of results, whole or not at all."""
    path = options.output / FILE
    temporary = path.with_suffix(".part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    temporary.replace(path)


class Journal:
    """Adds figures to the file of results one by one, so that a crash loses one figure.

    A figure begun and never ended is left as failed, and the process that takes over goes on after
    it: a device that has failed fails everything that comes after it in the same process.
    """

    def __init__(self, options: Options) -> None:
        report = read_report(options.output / FILE)
        if report is None:
            raise FileNotFoundError(options.output / FILE)
        self._options = options
        self.report = report

    def missing(self, section: Section) -> list[Figure]:
        """Return the figures of a section that were not begun, those without a record first."""
        begun = {each.what for each in self.report.figures}
        figures = figures_of(section, self._options.known)
        return [figure for figure in figures if figure.name not in begun]

    def measure(
        self, section: Section, work: Callable[[Figure], Measurement | None]
    ) -> SectionState:
        """Measure what is missing of a section; without a result the figure is left out.

        An error spoils one figure, unless the device has failed: that ends the process.
        """
        for figure in self.missing(section):
            self.begin(figure.name)
            try:
                found = work(figure)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no other base
                if isinstance(explain(error), ExecutorDied):
                    # This process can run nothing any more. The next one goes on after it.
                    sys.exit(str(error))
                found = Measurement(what=figure.name, passed=False, note=_first_line(error))
            self.drop(figure.name, keep=[found] if found else [])
        return SectionState(status="done")

    def begin(self, what: str) -> None:
        """Note what is about to run."""
        self.drop(what, keep=[Measurement(what=what, passed=False, note=UNFINISHED)])

    def drop(self, what: str, *, keep: Sequence[Measurement] = ()) -> None:
        """Remove a figure, or replace it by `keep`."""
        others = [each for each in self.report.figures if each.what != what]
        self.report = msgspec.structs.replace(self.report, figures=[*others, *keep])
        write_report(self._options, self.report)

    def close(self, section: Section, state: SectionState) -> None:
        """Note how a section ended."""
        sections = {**self.report.sections, section: state}
        self.report = msgspec.structs.replace(self.report, sections=sections)
        write_report(self._options, self.report)


def fastest(report: Report, batch: str) -> Candidate | None:
    """Return the form that was fastest in a batch, as `session, minilm-l6, 256x24`."""
    rates = {each.what: each.rate or 0.0 for each in report.figures if each.passed}
    timed = [each for each in CANDIDATES if rates.get(f"{batch}, {each.name}")]
    return max(timed, key=lambda each: rates[f"{batch}, {each.name}"], default=None)


def _first_line(error: Exception) -> str:
    """Return what an error says in its first line, without the folders of files."""
    first = str(error).strip().split("\n", 1)[0]
    text = " ".join(word.rpartition("/")[2] for word in first.split())
    return f"{type(error).__name__}: {text[:200]}"


def render(report: Report) -> str:
    """Return the report as Markdown, the ratios last."""
    machine, device = report.machine, report.device
    head = f"{device.name or 'no GPU'}, driver {device.driver or 'none'}, {report.runtime}"
    lines = [f"## GPU, provider {report.provider}", "", head, machine.headline, ""]
    if report.tiny:
        lines += ["A dry run with toy models: the figures mean nothing.", ""]
    lines += [
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
        *(
            _row(figure, found)
            for figure in FIGURES
            if (found := report.figure(figure.name)) is not None
            and _is_worth_showing(figure, found)
        ),
        "",
        *(
            f"{section}: {state.status} ({state.reason})"
            for section, state in report.sections.items()
            if state.status != "done"
        ),
        *ratios(report),
    ]
    return "\n".join(lines)


def ratios(report: Report) -> list[str]:
    """Return the gateway's rates relative to the bare session, PyTorch, TensorRT and arithmetic."""
    lines = []
    matrix = _rate(report, "matrix rate, operations/s")
    for preset, length in _MODELS:
        batch = f"{FULL_BATCH}x{length}"
        served = _rate(
            report, f"through the gateway, {preset}, {length} tokens, 64 texts a request"
        )
        best = fastest(report, f"session, {preset}, {batch}")
        bare = _rate(report, f"session, {preset}, {batch}, {best.name}") if best else 0.0
        floors = {
            "bare session": bare,
            "PyTorch alone": _rate(report, f"PyTorch alone, {preset}, fp16, {batch}"),
            "TensorRT alone": _rate(report, f"TensorRT alone, {preset}, fp16, {batch}"),
            "arithmetic limit": matrix / operations(preset, length),
        }
        lines += [
            f"{preset} through the gateway / {name}: {served / floor:.2f}"
            for name, floor in floors.items()
            if served and floor
        ]
    return lines


def operations(preset: str, length: int) -> float:
    """Return the operations of a forward pass over one sequence, as multiplications and sums."""
    shape = PRESETS[preset]
    dense = 4 * shape.hidden**2 + 2 * shape.hidden * shape.intermediate
    return float(shape.layers * 2 * length * (dense + 2 * length * shape.hidden))


def _rate(report: Report, what: str) -> float:
    found = report.figure(what)
    return (found.rate or 0.0) if found is not None and found.passed else 0.0


def _is_worth_showing(figure: Figure, found: Measurement) -> bool:
    """Return whether the table has the figure: of the checks, only those that failed."""
    return figure.section != "check" or not found.passed


def _row(figure: Figure, line: Measurement) -> str:
    cells = [
        line.what,
        _number(line.rate, ",.0f"),
        _number(figure.aim, ",.0f"),
        _number(line.tokens_per_second, ",.0f"),
        _number(line.busy, ".0%"),
        _number(line.waste, ".1%"),
        _number(line.error, ".1e"),
        _number(None if line.p50 is None else 1000 * line.p50, ".2f"),
        _number(None if line.p99 is None else 1000 * line.p99, ".2f"),
        line.note.replace("|", "/") if line.passed else f"FAILED {line.note[:80]}",
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
