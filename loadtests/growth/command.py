"""Measures how the system grows: `python -m loadtests growth`."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.growth.points import GrowthPoint, Measured, PointFile, judge, word
from loadtests.growth.sections import SECTIONS, SectionRun
from loadtests.machine import Machine, this_machine

_RESULTS = Path(__file__).parents[1] / "results" / "growth.jsonl"
_PLOTS = Path(__file__).parents[2] / "docs" / "plots"
_PANELS: dict[str, Callable[[GrowthPoint], float]] = {
    "requests/s": lambda point: point.rate,
    "processor time, µs a request": lambda point: sum(point.processor.values()),
    "p99, ms": lambda point: point.p99,
    "memory of all processes, MiB": lambda point: sum(point.memory.values()),
}
_LOUD = 0.05


@click.command("growth")
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="These sections.")
@click.option("--seconds", default=3.0, show_default=True, help="Of each measurement.")
@click.option("--most", default=1_000_000, show_default=True, help="Leave larger sizes out.")
@click.option("--draw-only", is_flag=True, help="Measure nothing.")
def growth_command(*, only: tuple[str, ...], seconds: float, most: int, draw_only: bool) -> None:
    """Measure throughput, processor time, p99 and memory as sizes grow.

    Points are kept as they are measured: a run that was broken off goes on where it was.
    """
    points, machine = PointFile(_RESULTS), this_machine()
    for name in only or tuple(SECTIONS):
        if not draw_only:
            measure(name, points, machine, seconds=seconds, most=most)
        show(name, points, _PLOTS)


def measure(
    name: str, points: PointFile, machine: Machine, *, seconds: float = 1.0, most: int
) -> None:
    """Measure the points of a section that are missing, and keep each at once."""
    section = SECTIONS[name]

    def wants(curve: str, size: int) -> bool:
        return not points.has(name, curve, size, machine)

    def keep(curve: str, size: int, found: Measured) -> None:
        figures = msgspec.structs.asdict(found)
        point = GrowthPoint(section=name, curve=curve, size=size, machine=machine, **figures)
        points.add(point)
        shown = ", ".join(f"{what} {value(point):,.1f}" for what, value in _PANELS.items())
        print(f"{size:,} {section.axis}, {curve}: {shown}", flush=True)

    sizes = tuple(size for size in section.sizes if size <= most)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        section.run(
            SectionRun(folder=Path(folder), sizes=sizes, seconds=seconds, wants=wants, keep=keep)
        )


def show(name: str, points: PointFile, plots: Path) -> None:
    """Print how the figures of a section grow, and draw them into a folder."""
    curves, axis = points.curves(name), SECTIONS[name].axis
    if not curves:
        return
    print(f"\n## {axis}\n\n| curve | sizes | figure | smallest | largest | exponent | it is |")
    print("|---|---|---|---|---|---|---|")
    for curve, found in curves.items():
        sizes = f"{found[0].size:,} to {found[-1].size:,}"
        for what, least, most, exponent in judge(found):
            figures = f"{least:,.0f} | {most:,.0f} | {exponent:.2f} | {word(exponent)}"
            print(f"| {curve} | {sizes} | {what} | {figures} |")
    figure = new_figure(name, width=10, height=6.5)
    largest = max(point.size for found in curves.values() for point in found)
    for axes, (what, value) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for curve, found in curves.items():
            values = [max(value(point), 1e-3) for point in found]
            axes.plot([point.size for point in found], values, marker="o", label=curve)
        axes.set_xscale("log", base=2 if largest < 5000 else 10)
        axes.set_yscale("log")
        finish_axes(axes, axis, what)
    every = [point for found in curves.values() for point in found]
    others = max(point.others for point in every)
    commits = ", ".join(sorted({point.machine.commit for point in every}))
    machine = every[-1].machine
    about = f"{machine.cpu}, {machine.cores} cores, {machine.interpreter}, {machine.date}"
    loud = f"; other work took up to {others:.0%} of it" * (others > _LOUD)
    figure.suptitle(f"How it grows: {axis}\n{about}, {commits}{loud}")
    print(f"\n{save_figure(figure, plots / f'{name}.svg')}")
