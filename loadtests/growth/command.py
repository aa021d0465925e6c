"""Measures how the system grows: `python -m loadtests growth`."""

import tempfile
from pathlib import Path

import click
import msgspec

from loadtests.growth.deployment import Measured
from loadtests.growth.plots import draw
from loadtests.growth.points import GrowthPoint, PointFile, judge, word
from loadtests.growth.sections import SECTIONS, SectionRun
from loadtests.machine import Machine, this_machine

_RESULTS = Path(__file__).parents[1] / "results"
_PLOTS = Path(__file__).parents[2] / "docs" / "plots"


@click.command("growth")
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="These sections.")
@click.option("--seconds", default=3.0, show_default=True, help="Of each measurement.")
@click.option("--prepare", default=300.0, show_default=True, help="Seconds to reach a size.")
@click.option("--most", default=1_000_000, show_default=True, help="Leave larger sizes out.")
@click.option("--fresh", is_flag=True, help="Measure anew what was measured at this commit.")
@click.option("--draw-only", is_flag=True, help="Measure nothing.")
@click.option("--results", type=click.Path(path_type=Path), default=_RESULTS / "growth.jsonl")
@click.option("--plots", type=click.Path(path_type=Path), default=_PLOTS)
def growth_command(
    *,
    only: tuple[str, ...],
    seconds: float,
    prepare: float,
    most: int,
    fresh: bool,
    draw_only: bool,
    results: Path,
    plots: Path,
) -> None:
    """Measure throughput, processor time, p99 and memory as sizes grow.

    Points are kept as they are measured: a run that was broken off goes on where it was.
    """
    points, machine = PointFile(results), this_machine()
    for name in only or tuple(SECTIONS):
        if not draw_only:
            measure(
                name,
                points,
                machine,
                seconds=seconds,
                prepare=prepare,
                most=most,
                fresh=fresh,
            )
        show(name, points, plots)
    points.compact()


def measure(
    name: str,
    points: PointFile,
    machine: Machine,
    *,
    seconds: float,
    prepare: float,
    most: int,
    fresh: bool = False,
) -> None:
    """Measure the points of a section that are missing, and keep each at once."""
    section = SECTIONS[name]

    def wants(curve: str, size: int) -> bool:
        return fresh or not points.has(name, curve, size, machine)

    def keep(curve: str, size: int, found: Measured) -> None:
        figures = msgspec.structs.asdict(found)
        point = GrowthPoint(section=name, curve=curve, size=size, machine=machine, **figures)
        points.add(point)
        print(
            f"{size:,} {section.axis}, {curve}: {point.rate:,.0f}/s, "
            f"{point.processor_sum:.0f} µs, p99 {point.p99:.1f} ms, {point.memory_sum:.0f} MiB, "
            f"idle {point.idle_sum:.0f} µs a second",
            flush=True,
        )

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        section.run(
            SectionRun(
                folder=Path(folder),
                sizes=tuple(size for size in section.sizes if size <= most),
                seconds=seconds,
                prepare=prepare,
                wants=wants,
                keep=keep,
            )
        )


def show(name: str, points: PointFile, plots: Path) -> None:
    """Print how the figures of a section grow, and draw them."""
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
    print(f"\n{draw(name, axis, curves, plots)}")
