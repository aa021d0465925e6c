"""Measures how costs grow with the size of a deployment: `python -m loadtests growth`."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.growth.points import Point, judge, word
from loadtests.growth.sections import SECTIONS, SectionRun
from loadtests.machine import Machine
from loadtests.report import heading, print_table

_RESULTS = Path(__file__).parents[1] / "results"
_PLOTS = Path(__file__).parents[2] / "docs" / "plots"
_PANELS: dict[str, Callable[[Point], float]] = {
    "requests/s": lambda point: point.rate,
    "processor time, µs a request": lambda point: sum(point.processor.values()),
    "p99, ms": lambda point: point.p99,
    "memory of all processes, MiB": lambda point: sum(point.memory.values()),
}
_COLUMNS = ("curve", "sizes", "figure", "smallest", "largest", "exponent", "it is")


@click.command("growth")
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="Only this section.")
@click.option("--seconds", default=3.0, help="Length of each measurement.")
@click.option("--most", default=1_000_000, help="Leave out sizes above this.")
def growth_command(*, only: tuple[str, ...], seconds: float, most: int) -> None:
    """Measure how rate, processor time, p99 and memory change as quantities such as tenants grow.

    The results of a run of all sections are kept and plotted.
    """
    for name in only or tuple(SECTIONS):
        title = f"Growth of {SECTIONS[name].axis}"
        points = measure(name, seconds=seconds, most=most)
        if not points:
            continue
        machine = heading(title)
        print_table(_COLUMNS, _lines(points))
        if most < max(SECTIONS[name].sizes):
            continue
        kept = {"title": title, "machine": machine, "rows": points}
        path = _RESULTS / f"{machine.date}-{title.lower().replace(' ', '-')}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
        print(f"\n{draw(name, points, machine, _PLOTS)}")


def measure(name: str, *, seconds: float, most: int) -> list[Point]:
    """Measure a section, and print each point as soon as it is measured."""
    section = SECTIONS[name]
    points: list[Point] = []

    def add(point: Point) -> None:
        points.append(point)
        shown = ", ".join(f"{what} {value(point):,.1f}" for what, value in _PANELS.items())
        print(f"{point.size:,} {section.axis}, {point.curve}: {shown}", flush=True)

    sizes = tuple(size for size in section.sizes if size <= most)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        section.run(SectionRun(folder=Path(folder), sizes=sizes, seconds=seconds, keep=add))
    return points


def _curves(points: Sequence[Point]) -> dict[str, list[Point]]:
    names = dict.fromkeys(point.curve for point in points)
    return {name: [point for point in points if point.curve == name] for name in names}


def _lines(points: Sequence[Point]) -> Iterator[tuple[str, ...]]:
    """Yield, for each figure of each curve, a line that says how fast the figure grows."""
    for curve, found in _curves(points).items():
        sizes = f"{found[0].size:,} to {found[-1].size:,}"
        for what, least, most, exponent in judge(found):
            growth = f"{exponent:.2f}", word(exponent)
            yield curve, sizes, what, f"{least:,.0f}", f"{most:,.0f}", *growth


def draw(name: str, points: Sequence[Point], machine: Machine, plots: Path) -> Path:
    """Draw the curves of a section into a folder; return the path of the picture."""
    axis = SECTIONS[name].axis
    figure = new_figure(name, width=10, height=6.5)
    largest = max(point.size for point in points)
    for axes, (what, value) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for curve, found in _curves(points).items():
            values = [max(value(point), 1e-3) for point in found]
            axes.plot([point.size for point in found], values, marker="o", label=curve)
        axes.set_xscale("log", base=2 if largest < 5000 else 10)
        axes.set_yscale("log")
        finish_axes(axes, axis, what)
    figure.suptitle(f"How it grows: {axis}\n{machine.headline}")
    return save_figure(figure, plots / f"{name}.svg")
