"""Simulates a day of thousands of backends: `python -m loadtests simulate`."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.report import Line, show
from loadtests.simulate.results import DayResult, Figures
from loadtests.simulate.run import POLICIES, play
from loadtests.simulate.scenario import Scenario
from loadtests.simulate.validation import validate

_ROOT = Path(__file__).parents[2]


@click.command("simulate")
@click.option("--backends", default=Scenario().backends, help="The most backends at a time.")
@click.option(
    "--grain", default=Scenario().grain, help="Requests for which one simulated request stands."
)
@click.option(
    "--validate",
    "busy",
    type=float,
    help="Compare 3 real and 3 simulated backends, busy for this share.",
)
def simulate_command(*, backends: int, grain: float, busy: float | None) -> None:
    """Simulate a day with a spike and a lost region, under production's and other routing policies.

    Latencies are multiples of the time that an item takes if no other item is in the system. The
    default scenario writes a result file and replaces the documented plot. Other scenarios draw
    into `build/simulate`.
    """
    logging.disable(logging.WARNING)  # thousands of backends come and go, and each would log
    if busy is not None:
        validate(busy)
        return
    scenario = Scenario(backends=backends, grain=grain)
    days = []
    for policy in POLICIES:
        days.append(play(scenario, policy))
        print(f"{policy}: {days[-1].phases[-1].played:,} requests", flush=True)
    is_default = scenario == Scenario()
    seconds = scenario.item_seconds()
    show(
        f"Simulation of {backends} backends",
        [_line(day.policy, part, seconds) for day in days for part in day.phases],
        *(f"{d.policy}: {d.pod_hours:,.0f} backend hours, at most {d.most_pods:,}" for d in days),
        keep=is_default,
    )
    folder = _ROOT / "docs" / "plots" if is_default else _ROOT / "build" / "simulate"
    print(f"\n{_draw(days, seconds, folder)}")


def _line(policy: str, part: Figures, item_seconds: float) -> Line:
    latencies = {"p50": part.p50, "p95": part.p95, "p99": part.p99}
    return {
        "policy": policy,
        "part of the day": part.phase,
        "played": part.played,
        "fewest backends": part.fewest_pods,
        "most": part.most_pods,
        "most in a region": part.most_in_region,
        **{name: one and one / item_seconds for name, one in latencies.items()},
        "failed": part.failed,
        "errors": f"{part.errors:.3%}",
        "to other regions": f"{part.spilled:.1%}",
    }


def _draw(days: Sequence[DayResult], item_seconds: float, folder: Path) -> Path:
    """Draw p95, errors and backends by the hour into a folder, with a line for each policy."""
    panels: Mapping[str, Callable[[Figures], float]] = {
        "p95, times an item's work": lambda point: (point.p95 or math.nan) / item_seconds,
        "errors, % of requests": lambda point: 100 * point.errors,
        "backends": lambda point: point.most_pods,
    }
    figure = new_figure("simulation", width=10, height=9)
    for axes, (what, value) in zip(figure.subplots(3, 1), panels.items(), strict=True):
        for day in days:
            hours = [point.start / 3600 for point in day.points]
            axes.plot(hours, [value(point) for point in day.points], label=day.policy)
        axes.set_xticks(range(0, 25, 2))
        if "errors" not in what and any(point.p95 for day in days for point in day.points):
            axes.set_yscale("log")
        finish_axes(axes, "hour of the day (UTC)", what)
    return save_figure(figure, folder / "simulation.svg")
