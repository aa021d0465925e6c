"""Plays a day over thousands of backends: `python -m loadtests simulate`."""

import contextlib
import logging
from pathlib import Path

import click
import msgspec

from loadtests.machine import Machine, this_machine
from loadtests.simulate.plots import draw_day
from loadtests.simulate.results import DayResult
from loadtests.simulate.run import POLICIES, Policy, play
from loadtests.simulate.scenario import Scenario
from loadtests.simulate.validation import validate

RESULTS = Path(__file__).parents[1] / "results" / "simulation.json"
PLOTS = Path(__file__).parents[2] / "docs" / "plots"
_HEADINGS = (
    "policy",
    "part of the day",
    "played",
    "backends",
    "most in a region",
    "p50",
    "p95",
    "p99",
    "failed",
    "errors",
    "to other regions",
)
_OTHER = Path(__file__).parents[2] / "build" / "simulate" / "simulation.json"


class SimulationFile(msgspec.Struct, frozen=True, kw_only=True):
    """The days of one scenario, by policy, and the machine that played them."""

    machine: Machine
    scenario: Scenario
    item_seconds: float
    days: list[DayResult]


@click.command("simulate")
@click.option("--backends", default=2000, show_default=True, help="The most at a time.")
@click.option("--grain", default=Scenario().grain, show_default=True, help="Requests in one.")
@click.option("--gateways", default=1, show_default=True, help="Of each region.")
@click.option("--only", type=click.Choice(POLICIES), multiple=True, help="These policies.")
@click.option("--price", default=0.05, show_default=True, help="Of a backend for an hour.")
@click.option("--validate", "busy", type=float, help="Compare with 3 real backends, so busy.")
@click.option("--draw-only", is_flag=True, help="Play nothing.")
@click.option("--results", type=click.Path(path_type=Path), help="Of the days, JSON.")
@click.option("--plots", type=click.Path(path_type=Path), help="Folder of the plot.")
def simulate_command(
    *,
    backends: int,
    grain: float,
    gateways: int,
    only: tuple[Policy, ...],
    price: float,
    busy: float | None,
    draw_only: bool,
    results: Path | None,
    plots: Path | None,
) -> None:
    """Play a day with a spike and a lost region, with production's routing and others.

    The recorded results and plot are those of the default scenario; others go to `build`.
    """
    if not draw_only:
        logging.disable(logging.WARNING)  # of thousands of backends that come and go
    if busy is not None:
        validate(backends=3, busy=busy, seconds=110.0)
        return
    share = backends / Scenario().backends
    scenario = Scenario(
        backends=backends, busy=Scenario().busy * share, grain=grain, gateways=gateways
    )
    results, plots = places(scenario, results, plots)
    if not draw_only:
        for policy in only or POLICIES:
            day = play(scenario, policy)
            keep(results, scenario, day)
            rate = day.simulated / day.processor_seconds
            print(
                f"{policy}: {day.simulated:,} requests in {day.processor_seconds:.0f} s of "
                f"processor time, {rate:,.0f} a second",
                flush=True,
            )
    try:
        found = msgspec.json.decode(results.read_bytes(), type=SimulationFile)
    except (FileNotFoundError, msgspec.ValidationError) as error:
        raise click.ClickException(f"{results} holds no days of this program: play them") from error
    print(table(found, price=price))
    print(f"\n{draw_day(found.days, found.item_seconds, plots)}")


def places(scenario: Scenario, results: Path | None, plots: Path | None) -> tuple[Path, Path]:
    """Return the file of the results and the folder of the plot.

    What is recorded is of the default scenario; others must not take its place.
    """
    results = results or (RESULTS if scenario == Scenario() else _OTHER)
    return results, plots or (PLOTS if results == RESULTS else results.parent)


def keep(path: Path, scenario: Scenario, day: DayResult) -> None:
    """Put a day into the file at `path`, in the place of the former one of its policy.

    Days of another scenario, or of a former form of the file, are left out.
    """
    days: list[DayResult] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with contextlib.suppress(msgspec.ValidationError):
            former = msgspec.json.decode(path.read_bytes(), type=SimulationFile)
            days = former.days if former.scenario == scenario else []
    days = sorted(
        [*(one for one in days if one.policy != day.policy), day],
        key=lambda one: list[str](POLICIES).index(one.policy),
    )
    seconds = scenario.item_seconds()
    content = SimulationFile(
        machine=this_machine(), scenario=scenario, item_seconds=seconds, days=days
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))


def table(found: SimulationFile, *, price: float) -> str:
    """Return the figures of each policy and part of the day, latencies in times an item's work."""
    lines = [
        f"| {' | '.join(_HEADINGS)} |",
        "|---" * len(_HEADINGS) + "|",
    ]
    for day in found.days:
        for one in day.phases:
            points = [each for each in day.points if one.phase in {each.phase, "the day"}]
            pods = sorted(each.pods for each in points)
            latencies = [
                "" if each is None else f"{each / found.item_seconds:.2f}"
                for each in (one.p50, one.p95, one.p99)
            ]
            figures = [
                f"{one.played:,}",
                f"{pods[0]:,} to {pods[-1]:,}",
                f"{max(each.most_in_region for each in points):,}",
                *latencies,
                f"{one.failed:,}",
                f"{one.errors:.3%}",
                f"{one.spilled:.1%}",
            ]
            lines.append(f"| {' | '.join([day.policy, one.phase, *figures])} |")
    lines += ["", "| policy | backend hours | price | most backends |", "|---|---|---|---|"]
    lines += [
        f"| {day.policy} | {day.pod_hours:,.0f} | {day.pod_hours * price:,.0f} | {day.most_pods} |"
        for day in found.days
    ]
    return "\n".join(lines)
