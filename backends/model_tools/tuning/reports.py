"""Formats reports: of a sweep, as tables and a plot, and of `models optimize`, in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.tuning.speed import Sweep
from sluicegate.backends.model_tools.tuning.sweep import Point
from sluicegate.backends.model_tools.tuning.variant_gate import VariantReport, describe_verdict
from sluicegate.backends.qualification.text_runs import SpeedSample

NO_PLOT = "no plot: the package `matplotlib` is missing; `pip install matplotlib` installs it"
_MILLISECONDS = 1000
_HEADINGS = (
    *("variant", "verdict", "rows/s", "speed (fp32 = 1)", "p95 of a batch"),
    *("results that change", "accuracy", "memory", "a million rows"),
)
_MIB = 1024 * 1024
_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6
_NONE = "-"
_METHOD = (
    "Rows a second and p95 are measured with batches of rows of similar length, on all threads, in "
    "alternating rounds. Memory is that of a process with the graph open on the CPU. After "
    "`sluicegate models reload`, backends use what was written."
)


class VariantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one variant. If it was not judged, `report` is `None`, and `reasons` says why."""

    name: str
    speed: SpeedSample | None = None
    report: VariantReport | None = None
    memory_bytes: int | None = None
    reasons: list[str] = []


class OptimizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of `models optimize`: all variants, and measurements of the served model.

    `chosen` is the best precision. `written` holds the folders of new revisions. A dry run writes
    none, so the model is still served in fp32.
    """

    model: str
    calibrated: int
    judged: int
    variants: list[VariantEntry]
    chosen: str
    written: list[Path]
    sweep: Sweep

    @property
    def is_served(self) -> bool:
        """Whether the repository has the model in the chosen precision."""
        return bool(self.written) or self.chosen == "fp32"


def describe_sweep(sweep: Sweep) -> list[str]:
    """Return the lines of the tables."""
    lines = [_name(sweep), ""]
    lines += ["threads  rows a batch  rows/s   p95 of a batch"]
    lines += [
        f"{p.threads:7}  {p.batch_size:12}  {p.rows_per_second:6.0f}  {1000 * p.p95:11.1f} ms"
        for p in sweep.batches
    ]
    lines += ["", "clients  rows/s   p95 of a response"]
    lines += [
        f"{p.clients:7}  {p.rows_per_second:6.0f}  {1000 * p.p95:12.1f} ms" for p in sweep.clients
    ]
    best = sweep.best
    lines += ["", f"best: {best.batch_size} rows a batch, {best.threads} threads"]
    if not sweep.shares_batches:
        lines.append("rows run alone, because the outputs depend on the rows beside them")
    return lines


def plot_sweep(sweep: Sweep, path: Path, echo: Callable[[str], None]) -> bool:
    """Plot throughput and p95 against batch sizes and numbers of clients, and print the file.

    Return `False` if matplotlib is not installed. The suffix of `path` is the format: `.svg`,
    `.png` or `.pdf`.

    Raises:
        StartProblem: the file cannot be written, or matplotlib does not know the format.
    """
    try:
        # Imported late, because it is optional and takes half a second.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        echo(NO_PLOT)
        return False
    # A `Figure` that is not managed by pyplot needs no display.
    figure = Figure(figsize=(11, 8), layout="constrained")
    (rates, delays), (client_rates, client_delays) = figure.subplots(2, 2)
    machine, best = sweep.machine, sweep.best
    figure.suptitle(
        f"{_name(sweep)}: {best.batch_size} rows a batch in {best.threads} threads\n"
        f"{', '.join([*machine.devices, *machine.runtimes])}, {machine.date}"
    )
    threads = {
        f"{count} threads": [point for point in sweep.batches if point.threads == count]
        for count in sorted({point.threads for point in sweep.batches})
    }
    clients = {"": sweep.clients}
    _draw(rates, threads, _size, _rate, ("rows a batch", "rows a second"))
    _draw(delays, threads, _size, _delay, ("rows a batch", "p95 of a batch, ms"))
    _draw(client_rates, clients, _clients, _rate, ("clients", "rows a second"))
    _draw(client_delays, clients, _clients, _delay, ("clients", "p95 of a response, ms"))
    for axes, value in ((rates, _rate), (delays, _delay)):
        axes.scatter([best.batch_size], [value(best)], s=160, facecolors="none", edgecolors="red")
        axes.annotate("chosen", (best.batch_size, value(best)), (6, 8), textcoords="offset points")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartProblem(f"cannot write `{path}`: {reason}") from None
    echo(f"plot: {path}")
    return True


def _name(sweep: Sweep) -> str:
    return f"{sweep.model}, revision {sweep.folder.name}"


def _draw(
    axes: Any,  # matplotlib has its own types, but may not be installed
    series: Mapping[str, Sequence[Point]],
    across: Callable[[Point], int],
    upwards: Callable[[Point], float],
    titles: tuple[str, str],
) -> None:
    for name, points in series.items():
        places = [across(point) for point in points]
        axes.plot(places, [upwards(point) for point in points], marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(titles[0])
    axes.set_title(titles[1])
    axes.grid(visible=True, alpha=0.3)
    if len(series) > 1:
        axes.legend()


def _size(point: Point) -> int:
    return point.batch_size


def _clients(point: Point) -> int:
    return point.clients


def _rate(point: Point) -> float:
    return point.rows_per_second


def _delay(point: Point) -> float:
    return _MILLISECONDS * point.p95


def write_report(result: OptimizeResult, *, price: float | None, plot: str | None) -> str:
    """Return the report; `price` is the price of the machine per hour."""
    sweep, best = result.sweep, result.sweep.best
    machine = sweep.machine
    rows = [_row(result, entry, price) for entry in result.variants]
    served = f"- Served: `{sweep.model}`, revision {sweep.folder.name}, in {result.chosen}."
    lines = [
        f"# `{result.model}`: {result.chosen}",
        "",
        f"- Machine: {', '.join([*machine.devices, *machine.runtimes])}; {machine.date}.",
        f"- {result.judged:,} texts or pairs judged, {result.calibrated:,} others calibrated int8.",
        *([served] if result.is_served else []),
        f"- Batches: {best.batch_size} rows, {best.threads} at a time.",
        *(f"- Written: `{folder}`." for folder in result.written),
        "",
        "## Variants",
        "",
        *_table(_HEADINGS, rows),
        "",
        _METHOD,
        "",
    ]
    for entry in result.variants:
        lines += _details(entry)
    lines += ["## Batches", "", *_sweep(result), ""]
    if plot is not None:
        lines += [f"![rows a second and p95]({plot})", ""]
    return "\n".join(lines)


def _row(result: OptimizeResult, entry: VariantEntry, price: float | None) -> list[str]:
    report, speed = entry.report, entry.speed
    verdict = report.verdict if report is not None else None
    accuracy = verdict.accuracy_after if verdict is not None else None
    if entry.name == "fp32":
        accuracy = next(
            (e.report.verdict.accuracy_before for e in result.variants if e.report), None
        )
    return [
        entry.name,
        _verdict(result, entry),
        f"{speed.rows_per_second:,.0f}" if speed else _NONE,
        f"{report.speedup:.2f} (≥ {report.least_speedup:.2f})" if report else _NONE,
        f"{1000 * speed.p95:.1f} ms" if speed else _NONE,
        f"{verdict.flips:.2%} (≤ {verdict.flips_at_most:.2%})" if verdict else _NONE,
        f"{accuracy:.2%}" if accuracy is not None else _NONE,
        f"{entry.memory_bytes / _MIB:,.0f} MiB" if entry.memory_bytes is not None else _NONE,
        _cost(speed.rows_per_second, price) if speed else _NONE,
    ]


def _verdict(result: OptimizeResult, entry: VariantEntry) -> str:
    if entry.name == result.chosen:
        return "served" if result.is_served else "accepted, fastest"
    if entry.name == "fp32":
        return "reference"
    if entry.report is None:
        return "not tried"
    return "refused" if entry.reasons else "accepted, slower"


def _cost(rows_per_second: float, price: float | None) -> str:
    if price is None:
        return _NONE
    return f"{price * _MILLION / (rows_per_second * _SECONDS_PER_HOUR):,.4f}"


def _details(entry: VariantEntry) -> list[str]:
    lines = [f"- {reason}" for reason in entry.reasons]
    if entry.report is not None:
        verdict = describe_verdict(entry.report.verdict, entry.name)
        lines = [*(f"- {title}: {value}" for title, value in verdict), *lines]
    return [f"### {entry.name}", "", *lines, ""] if lines else []


def _sweep(result: OptimizeResult) -> list[str]:
    sweep = result.sweep
    batches = [
        [str(p.threads), str(p.batch_size), f"{p.rows_per_second:,.0f}", f"{1000 * p.p95:.1f} ms"]
        for p in sweep.batches
    ]
    clients = [
        [str(p.clients), f"{p.rows_per_second:,.0f}", f"{1000 * p.p95:.1f} ms"]
        for p in sweep.clients
    ]
    return [
        *_table(("batches at a time", "rows a batch", "rows/s", "p95 of a batch"), batches),
        "",
        *_table(("clients", "rows/s", "p95 of a response"), clients),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]
