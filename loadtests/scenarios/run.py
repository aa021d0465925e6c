"""Runs a scenario: finds the capacity if needed, sends the load, and writes the report."""

import shlex
import sys

import click

from loadtests.machine import this_machine
from loadtests.scenarios import k6
from loadtests.scenarios.analysis import Run, find_capacity
from loadtests.scenarios.catalogue import SCENARIOS, Plan
from loadtests.scenarios.report import write_report
from loadtests.scenarios.system import LocalSystem, Watcher


def run_scenario(load: k6.Load, *, local: LocalSystem | None = None) -> bool:
    """Run a scenario and write its report; return whether all criteria hold."""
    options, scenario = load.options, SCENARIOS[load.options.scenario]
    zipf = scenario.zipf if options.zipf is None else options.zipf
    capacity = None
    if options.rate is None:
        capacity = find_capacity(lambda *given: load.send(*given).answers, options.deadline)
    rate = options.rate or (capacity.rate * scenario.load if capacity else 0.0)
    plan = Plan(phases=scenario.phases(rate, options.seconds or scenario.seconds))
    click.echo(f"{options.scenario}: {scenario.question} {rate:.0f}/s")
    watcher = Watcher(local, faults=scenario.has_faults, duration=plan.duration)
    sent = load.send(options.scenario, plan, zipf=zipf, advance=watcher.advance)
    machine = this_machine()
    repeats = f"Zipf, exponent {zipf:g}" if zipf else "no text twice"
    kinds = ", ".join(kind.name for kind in load.kinds)
    facts = {
        "command": shlex.join(["python", "-m", "loadtests.scenarios", *sys.argv[1:]]),
        "address": "a system on this machine" if local else load.url,
        "machine of the generator": f"{machine.headline}, {machine.memory_gib} GiB",
        "generator": k6.version(),
        "requests under way": f"{sent.users} at most; {sent.dropped:,} were due and not sent",
        "requests": f"{repeats}; {len(load.keys)} tenants; seed {options.seed}; {kinds}",
    }
    if capacity is not None:
        waiting = f"32 callers who wait reach {capacity.closed_loop:.0f}/s"
        facts["capacity, found first"] = f"{capacity.rate:.0f}/s; {waiting}"
    path, holds = write_report(
        Run(
            options=options,
            facts=facts,
            plan=plan,
            capacity=capacity,
            answers=sent.answers,
            ideal=sent.ideal,
            dropped=sent.dropped,
            use=watcher.samples,
            marks=watcher.marks,
        )
    )
    click.echo(f"\n{path.read_text(encoding='utf-8')}\n{path}")
    return holds
