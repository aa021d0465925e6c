"""Measures how the system grows: `python -m loadtests growth`."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.growth.points import (
    GrowthPoint,
    Measured,
    add_point,
    curves,
    judge,
    read_points,
    word,
)
from loadtests.growth.sections import SECTIONS, SectionRun
from loadtests.machine import this_machine
from loadtests.report import heading, print_table

_RESULTS = Path(__file__).parents[1] / "results" / "growth.jsonl"
_PLOTS = Path(__file__).parents[2] / "docs" / "plots"
_PANELS: dict[str, Callable[[GrowthPoint], float]] = {
    "requests/s": lambda point: point.rate,
    "processor time, µs a request": lambda point: sum(point.processor.values()),
    "p99, ms": lambda point: point.p99,
    "memory of all processes, MiB": lambda point: sum(point.memory.values()),
}


@click.command("growth")
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="These sections.")
@click.option("--seconds", default=3.0, help="Of each measurement.")
@click.option("--most", default=1_000_000, help="Leave larger sizes out.")
@click.option("--draw-only", is_flag=True, help="Measure nothing.")
def growth_command(*, only: tuple[str, ...], seconds: float, most: int, draw_only: bool) -> None:
    """Measure throughput, processor time, p99 and memory as sizes grow.

    Points are kept as they are measured: after a run that was broken off, name what is missing.
    """
    for name in only or tuple(SECTIONS):
        if not draw_only:
            measure(name, _RESULTS, seconds=seconds, most=most)
        show(name, read_points(_RESULTS), _PLOTS)


def measure(name: str, results: Path, *, seconds: float, most: int) -> None:
    """Measure the points of a section, and keep each at once."""
    section, machine = SECTIONS[name], this_machine()

    def keep(curve: str, size: int, found: Measured) -> None:
        figures = msgspec.structs.asdict(found)
        point = GrowthPoint(section=name, curve=curve, size=size, machine=machine, **figures)
        add_point(results, point)
        shown = ", ".join(f"{what} {value(point):,.1f}" for what, value in _PANELS.items())
        print(f"{size:,} {section.axis}, {curve}: {shown}", flush=True)

    sizes = tuple(size for size in section.sizes if size <= most)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        section.run(SectionRun(folder=Path(folder), sizes=sizes, seconds=seconds, keep=keep))


def show(name: str, points: list[GrowthPoint], plots: Path) -> None:
    """Print how the figures of a section grow, and draw them into a folder."""
    found, axis = curves(points, name), SECTIONS[name].axis
    if not found:
        return
    every = [point for curve in found.values() for point in curve]
    machine = heading(f"How it grows: {axis}", every[-1].machine)
    columns = ("curve", "sizes", "figure", "smallest", "largest", "exponent", "it is")
    print_table(
        columns,
        (
            (
                *(curve, f"{of[0].size:,} to {of[-1].size:,}", what),
                *(f"{least:,.0f}", f"{most:,.0f}", f"{exponent:.2f}", word(exponent)),
            )
            for curve, of in found.items()
            for what, least, most, exponent in judge(of)
        ),
    )
    figure = new_figure(name, width=10, height=6.5)
    largest = max(point.size for point in every)
    for axes, (what, value) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for curve, of in found.items():
            values = [max(value(point), 1e-3) for point in of]
            axes.plot([point.size for point in of], values, marker="o", label=curve)
        axes.set_xscale("log", base=2 if largest < 5000 else 10)
        axes.set_yscale("log")
        finish_axes(axes, axis, what)
    figure.suptitle(f"How it grows: {axis}\n{machine.headline}")
    print(f"\n{save_figure(figure, plots / f'{name}.svg')}")
