"""Runs faults from the command line: `python -m loadtests faults`."""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any  # each topology has its own type of setup

import click

from loadtests.faults import report
from loadtests.faults.containers import Containers
from loadtests.faults.entries import FAULTS
from loadtests.faults.fleet import Fleet
from loadtests.faults.namespaces import Namespaces
from loadtests.faults.pods import Pods
from loadtests.faults.processes import Processes
from loadtests.faults.run import Job, Pace, run_jobs
from loadtests.faults.topology import Topology, TopologyError

TOPOLOGIES: Mapping[str, Callable[[Path, Any], Topology]] = {
    "processes": Processes,
    "namespaces": lambda folder, setup: Fleet(folder) if setup == "fleet" else Namespaces(folder),
    "containers": lambda _, setup: Containers(setup),
    "pods": lambda folder, _: Pods(folder),
}
"""Functions that build each topology in an empty folder, with the setup of a fault."""
_ENOUGH = 900.0
"""No case begins later than this many seconds after the start, so that a run ends within 20
minutes."""


@click.command("faults")
@click.option("--topology", multiple=True, type=click.Choice(list(TOPOLOGIES)))
@click.option(
    "--fault",
    "names",
    multiple=True,
    help="Names of faults, with `*` as wildcard: `FAULT` or `FAULT PART`.",
)
@click.option("--list", "is_list", is_flag=True, help="Print the catalogue of faults.")
@click.option("--table", "is_table", is_flag=True, help="Print the results of this commit.")
@click.option("--repeat", default=1, show_default=True, help="How often each case runs.")
def faults_command(
    *,
    topology: tuple[str, ...],
    names: tuple[str, ...],
    is_list: bool,
    is_table: bool,
    repeat: int,
) -> None:
    """Inject faults under load; judge answers, bills, errors and recovery.

    A run ends within 20 minutes. The next run of the same command continues: it skips the cases
    that are recorded for this commit.
    """
    jobs = list(_jobs(topology or tuple(TOPOLOGIES), names or ("*",), repeat))
    if not jobs:
        raise click.UsageError("no fault has this name here; `--list` prints the catalogue")
    if is_list:
        _list(jobs)
        return
    commit = report.current_commit()
    print(report.HEADING, flush=True)
    if is_table:
        print("\n".join(report.rows(report.records(report.RESULTS, commit).values())))
        return
    _run(jobs, commit)


def _run(jobs: Sequence[Job], commit: str) -> None:
    """Run fault tests and print each result; exit with 1 if an invariant did not hold."""
    # Exiting also removes mounts and containers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        left = run_jobs(
            jobs,
            lambda name, folder, setup: TOPOLOGIES[name](folder, setup),
            report.RESULTS,
            commit=commit,
            pace=Pace(),
            within=_ENOUGH,
            show=lambda record: print(*report.rows([record]), flush=True),
        )
    except TopologyError as error:
        raise click.ClickException(f"the topology did not start: {error}") from error
    if left:
        print(f"{len(left)} cases are left: run the same command again")
    # The exit code also depends on findings that earlier runs of this command recorded.
    known = report.records(report.RESULTS, commit)
    names = [job.name for job in jobs]
    if broken := [name for name in names if name in known and known[name].findings]:
        sys.exit(f"not as it must be: {', '.join(broken)}")


def _jobs(topologies: tuple[str, ...], names: tuple[str, ...], repeat: int) -> Iterator[Job]:
    for topology in topologies:
        for fault in FAULTS:
            if topology != fault.topology:
                continue
            for part in fault.parts() if callable(fault.parts) else fault.parts:
                known = (fault.name, f"{fault.name} {part}")
                if any(fnmatchcase(each, name) for each in known for name in names):
                    yield from (Job(fault, part, number) for number in range(repeat))


def _list(jobs: list[Job]) -> None:
    print("| fault | what it does | how it is undone | topologies: parts | errors are allowed |")
    print("|---|---|---|---|---|")
    for fault in {id(job.fault): job.fault for job in jobs}.values():
        mine = [job.part for job in jobs if job.fault is fault]
        parts = ", ".join(dict.fromkeys(f"{fault.topology} {part}".strip() for part in mine))
        windows = ", ".join(f"{kind}: {window}" for kind, window in fault.windows.items())
        print(f"| {fault.name} | {fault.what} | {fault.undo} | {parts} | {windows or 'never'} |")
