"""Formats the report of a sweep: tables, and a plot if matplotlib is installed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.errors import StartProblem
from backends.model_tools.tuning.speed import Sweep
from backends.model_tools.tuning.sweep import Point

NO_PLOT = "no plot: the package `matplotlib` is missing; `pip install matplotlib` installs it"
_MILLISECONDS = 1000


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
