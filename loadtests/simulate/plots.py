"""Draws a simulated day: p95, errors and backends by the hour, a line for each policy."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.simulate.results import DayResult, Point


def draw_day(days: Sequence[DayResult], item_seconds: float, folder: Path) -> Path:
    """Write `simulation.svg` into `folder`."""
    panels: Mapping[str, Callable[[Point], float]] = {
        "p95, times an item's work": lambda point: (point.p95 or math.nan) / item_seconds,
        "errors, % of requests": lambda point: 100 * point.errors,
        "backends": lambda point: point.pods,
    }
    figure = new_figure("simulation", width=10, height=9)
    for axes, (what, value) in zip(figure.subplots(3, 1), panels.items(), strict=True):
        for day in days:
            hours = [point.start / 3600 for point in day.points]
            axes.plot(hours, [value(point) for point in day.points], label=day.policy)
        axes.set_xticks(range(0, 25, 2))
        finish_axes(axes, "hour of the day (UTC)", what)
    figure.axes[0].set_yscale("log")
    figure.axes[2].set_yscale("log")
    return save_figure(figure, folder / "simulation.svg")
