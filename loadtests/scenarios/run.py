"""Runs a scenario: finds the capacity if needed, sends the load, and writes the report."""

import shlex
import sys
from concurrent.futures import ThreadPoolExecutor

import click

from loadtests.machine import this_machine
from loadtests.measured import own_seconds
from loadtests.report import table
from loadtests.scenarios.analysis import Run, figures, find_capacity, verdicts
from loadtests.scenarios.catalogue import SCENARIOS, Plan
from loadtests.scenarios.k6 import Load
from loadtests.scenarios.system import kill_processes
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
    """Run a scenario and write its report; a scenario with faults needs a `system` to kill.

    Without a rate, first find the capacity, and then use a fraction of the capacity as rate.
    """
    scenario, capacity = SCENARIOS[name], None
    if rate is None:
        capacity = find_capacity(lambda *given: load.send(*given).answers, load.deadline)
        rate = capacity * scenario.load
    plan = Plan(phases=scenario.phases(rate, seconds or scenario.seconds))
    click.echo(f"{name}: {scenario.question} {rate:.0f}/s")
    zipf = scenario.zipf if zipf is None else zipf
    used = own_seconds()
    with ThreadPoolExecutor() as pool:
        killing = None
        if system is not None and scenario.has_faults:
            killing = pool.submit(kill_processes, system, plan.duration)
        sent = load.send(name, plan, zipf=zipf)
        marks = killing.result() if killing else []
    used = own_seconds() - used
    run = Run(scenario=scenario, plan=plan, deadline=load.deadline, capacity=capacity, sent=sent)
    path = load.folder / "report.md"
    facts = [
        f"`{shlex.join(['python', '-m', 'loadtests.scenarios', *sys.argv[1:]])}`",
        f"The generator used {used / plan.duration:.2f} cores of {this_machine().headline}.",
        *([f"The capacity is {capacity:.0f}/s."] if capacity else []),
    ]
    path.write_text(_page(name, run, marks, facts), encoding="utf-8")
    click.echo(f"\n{path.read_text(encoding='utf-8')}\n{path}")
    return run


def _page(name: str, run: Run, marks: list[tuple[str, str]], facts: list[str]) -> str:
    phases = list(figures(run))
    judged = [(*each[:3], "holds" if each.holds else "FAILS") for each in verdicts(run)]
    parts = [
        f"# Load test: {name}",
        run.scenario.question,
        table(("criterion", "found", "wanted", ""), judged),
        f"Latencies are of answers with 200; in time is within {run.deadline:g} s.",
        table(list(phases[0]), [list(phase.values()) for phase in phases]),
        *([table(("s", "what"), marks)] if marks else []),
        "\n".join(facts),
    ]
    return "\n\n".join(parts) + "\n"
