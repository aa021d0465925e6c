"""Runs a scenario: finds the capacity if needed, sends the load, and writes the report."""

import shlex
import sys

import click

from loadtests.machine import this_machine
from loadtests.report import table
from loadtests.scenarios.analysis import Run, Verdict, figures, find_capacity, verdicts
from loadtests.scenarios.catalogue import SCENARIOS, Plan
from loadtests.scenarios.k6 import Load
from loadtests.scenarios.system import Watcher
from testing.system import System


def run_scenario(
    name: str,
    load: Load,
    *,
    rate: float | None = None,
    seconds: float | None = None,
    zipf: float | None = None,
    system: System | None = None,
) -> Run:
    """Run a scenario and write its report.

    Without a rate, first find the capacity, and then use a fraction of the capacity as rate.
    """
    scenario, capacity = SCENARIOS[name], None
    if rate is None:
        capacity = find_capacity(lambda *given: load.send(*given).answers, load.deadline)
        rate = capacity * scenario.load
    plan = Plan(phases=scenario.phases(rate, seconds or scenario.seconds))
    click.echo(f"{name}: {scenario.question} {rate:.0f}/s")
    watcher = Watcher(system, faults=scenario.has_faults, duration=plan.duration)
    zipf = scenario.zipf if zipf is None else zipf
    sent = load.send(name, plan, zipf=zipf, advance=watcher.advance)
    run = Run(scenario=scenario, plan=plan, deadline=load.deadline, capacity=capacity, sent=sent)
    path = load.folder / "report.md"
    path.write_text(_page(name, run, list(verdicts(run)), watcher), encoding="utf-8")
    click.echo(f"\n{path.read_text(encoding='utf-8')}\n{path}")
    return run


def _page(name: str, run: Run, judged: list[Verdict], watcher: Watcher) -> str:
    phases = list(figures(run))
    facts = [
        f"`{shlex.join(['python', '-m', 'loadtests.scenarios', *sys.argv[1:]])}`",
        f"The generator ran on {this_machine().headline}.",
        *([f"The capacity is {run.capacity:.0f}/s."] if run.capacity else []),
        f"Latencies are of answers with 200; in time is within {run.deadline:g} s.",
    ]
    holds = [(*each[:3], "holds" if each.holds else "FAILS") for each in judged]
    parts = [
        f"# Load test: {name}",
        run.scenario.question,
        table(("criterion", "found", "wanted", ""), holds),
        table(list(phases[0]), [list(phase.values()) for phase in phases]),
        table(("process", "cores", "MiB at the start", "MiB at the end"), watcher.use()),
        *([table(("s", "what"), watcher.marks)] if watcher.marks else []),
        "\n".join(facts),
    ]
    return "\n\n".join(parts) + "\n"
