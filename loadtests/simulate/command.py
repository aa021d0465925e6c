"""Simulates a day of thousands of backends: `python -m loadtests simulate`."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import msgspec

from loadtests.drawing import finish_axes, new_figure, save_figure
from loadtests.machine import Machine, this_machine
from loadtests.report import table
from loadtests.simulate.results import DayResult, Figures
from loadtests.simulate.run import POLICIES, play
from loadtests.simulate.scenario import Scenario
from loadtests.simulate.validation import validate

_ROOT = Path(__file__).parents[2]
_PRICE = 0.05
"""The price of a backend for an hour."""
_PARTS = (
    *("policy", "part of the day", "played", "backends", "most in a region"),
    *("p50", "p95", "p99", "failed", "errors", "to other regions"),
)


class SimulationFile(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated days of one scenario, by policy, and the machine that simulated them."""

    machine: Machine
    scenario: Scenario
    item_seconds: float
    days: list[DayResult]


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

    The default scenario replaces the recorded results and the plot. Other scenarios write to
    `build/simulate`.
    """
    logging.disable(logging.WARNING)  # thousands of backends come and go, and each would log
    if busy is not None:
        validate(busy)
        return
    scenario = Scenario(backends=backends, grain=grain)
    results, plots = _ROOT / "loadtests" / "results", _ROOT / "docs" / "plots"
    if scenario != Scenario():
        results = plots = _ROOT / "build" / "simulate"
        results.mkdir(parents=True, exist_ok=True)
    machine = this_machine()
    path = results / f"{machine.date}-simulation-of-{backends}-backends.json"
    found = SimulationFile(
        machine=machine, scenario=scenario, item_seconds=scenario.item_seconds(), days=[]
    )
    for policy in POLICIES:
        day = play(scenario, policy)
        found.days.append(day)
        print(f"{policy}: {day.phases[-1].played:,} requests", flush=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    print(f"{tables(found)}\n\n{path}\n{draw_days(found, plots)}")


def tables(found: SimulationFile) -> str:
    """Return each policy's figures for each part of the day.

    Latencies are multiples of the time that an item takes if no other item is in the system.
    """

    def part(day: DayResult, one: Figures) -> list[str]:
        latencies = (one.p50, one.p95, one.p99)
        return [
            *(day.policy, one.phase, f"{one.played:,}"),
            *(f"{one.fewest_pods:,} to {one.most_pods:,}", f"{one.most_in_region:,}"),
            *("" if each is None else f"{each / found.item_seconds:.2f}" for each in latencies),
            *(f"{one.failed:,}", f"{one.errors:.3%}", f"{one.spilled:.1%}"),
        ]

    parts = table(_PARTS, (part(day, one) for day in found.days for one in day.phases))
    cost = (
        (day.policy, f"{day.pod_hours:,.0f}", f"{day.pod_hours * _PRICE:,.0f}", day.most_pods)
        for day in found.days
    )
    return f"{parts}\n\n{table(('policy', 'backend hours', 'price', 'most backends'), cost)}"


def draw_days(found: SimulationFile, folder: Path) -> Path:
    """Draw p95, errors and backends by the hour into a folder, with a line for each policy."""
    panels: Mapping[str, Callable[[Figures], float]] = {
        "p95, times an item's work": lambda point: (point.p95 or math.nan) / found.item_seconds,
        "errors, % of requests": lambda point: 100 * point.errors,
        "backends": lambda point: point.most_pods,
    }
    figure = new_figure("simulation", width=10, height=9)
    for axes, (what, value) in zip(figure.subplots(3, 1), panels.items(), strict=True):
        for day in found.days:
            hours = [point.start / 3600 for point in day.points]
            axes.plot(hours, [value(point) for point in day.points], label=day.policy)
        axes.set_xticks(range(0, 25, 2))
        if "errors" not in what:
            axes.set_yscale("log")
        finish_axes(axes, "hour of the day (UTC)", what)
    return save_figure(figure, folder / "simulation.svg")
