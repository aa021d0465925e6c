"""Draws the curves of a section: throughput, processor time, p99 and memory by size."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any  # matplotlib's types come with it, and it may be absent

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.growth.points import GrowthPoint

_PANELS: Mapping[str, Callable[[GrowthPoint], float]] = {
    "requests/s": lambda point: point.rate,
    "processor time, µs a request": lambda point: point.processor_sum,
    "p99, ms": lambda point: point.p99,
    "memory of all processes, MiB": lambda point: point.memory_sum,
}
_LOUD = 0.05


def draw(
    section: str, axis: str, curves: Mapping[str, Sequence[GrowthPoint]], folder: Path
) -> Path:
    """Write `SECTION.svg` into `folder`."""
    figure = new_figure(section, width=10, height=6.5)
    for axes, (what, value) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        _panel(axes, what, axis, {name: _line(each, value) for name, each in curves.items()})
    figure.suptitle(f"How it grows: {axis}\n{_note([p for each in curves.values() for p in each])}")
    return save_figure(figure, folder / f"{section}.svg")


def _panel(axes: Any, what: str, axis: str, lines: Mapping[str, tuple[list[int], Any]]) -> None:
    for name, (sizes, values) in lines.items():
        axes.plot(sizes, values, marker="o", label=name)
    axes.set_xscale("log", base=2 if max(max(sizes) for sizes, _ in lines.values()) < 5000 else 10)
    axes.set_yscale("log")
    finish_axes(axes, axis, what)


def _line(
    points: Sequence[GrowthPoint], value: Callable[[GrowthPoint], float]
) -> tuple[list[int], list[float]]:
    return [point.size for point in points], [max(value(point), 1e-3) for point in points]


def _note(points: Sequence[GrowthPoint]) -> str:
    machine = points[-1].machine
    others = max(point.others for point in points)
    loud = f"; other work took up to {others:.0%} of it: rates and p99 say little" * (
        others > _LOUD
    )
    commits = ", ".join(sorted({point.machine.commit for point in points}))
    about = f"{machine.cpu}, {machine.cores} cores, {machine.interpreter}, {machine.date}"
    return f"{about}, {commits}{loud}"
