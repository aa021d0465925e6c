"""Runs the drills from the command line: `python -m loadtests drills`."""

import sys
from pathlib import Path

import click

from loadtests.drills.faults import DRILLS
from loadtests.drills.report import report
from loadtests.drills.run import DrillResult, run_drill
from loadtests.machine import this_machine

_PAGE = Path(__file__).parents[2] / "docs/drills.md"


@click.command("drills")
@click.option("--only", multiple=True, type=click.Choice([each.name for each in DRILLS]))
@click.option("--interval", default="15s", show_default=True, help="Of scrapes and rules.")
@click.option("--quiet", default=60.0, show_default=True, help="Seconds before the fault.")
@click.option("--limit", default=180.0, show_default=True, help="Most seconds of a fault.")
@click.option("--write", is_flag=True, help="Write docs/drills.md.")
def drills_command(
    *, only: tuple[str, ...], interval: str, quiet: float, limit: float, write: bool
) -> None:
    """Inject faults, and record which alerts fire when, and what panels show (root)."""
    results: list[DrillResult] = []
    for drill in DRILLS:
        if not only or drill.name in only:
            results.append(run_drill(drill, interval=interval, quiet=quiet, limit=limit))
            print(report(results[-1:], interval=interval, machine=""), flush=True)
    machine = this_machine()
    where = f"{machine.cores} cores of {machine.cpu}, {machine.date}, commit {machine.commit}"
    page = report(results, interval=interval, machine=where)
    if write:
        _PAGE.write_text(page)
    else:
        print(page)
    silent = [each.name for each in results if not set(each.expected) & set(each.fired)]
    if silent:
        sys.exit(f"no expected alert fired: {', '.join(silent)}")
