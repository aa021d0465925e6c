"""Runs faults from the command line: `python -m loadtests faults`."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any  # each topology has its own type of setup

import click

from loadtests.faults import (
    alerts,
    batch,
    bulk_jobs,
    changes,
    container_faults,
    fleet,
    namespaces,
    pods,
    process_faults,
    report,
)
from loadtests.faults.containers import Containers
from loadtests.faults.namespaces import Namespaces
from loadtests.faults.pods import Pods
from loadtests.faults.processes import Processes
from loadtests.faults.run import Job, Pace, run_jobs
from loadtests.faults.topology import Topology, TopologyError

TOPOLOGIES: Mapping[str, Callable[[Path, Any], Topology]] = {
    "processes": Processes,
    "namespaces": lambda folder, setup: Processes(folder, setup) if setup else Namespaces(folder),
    "containers": lambda _, setup: Containers(setup),
    "pods": lambda folder, _: Pods(folder),
}
"""Functions that build each topology in an empty folder, with the setup of a fault."""
FAULTS = (
    *(*process_faults.FAULTS, *batch.FAULTS, *alerts.FAULTS, *bulk_jobs.FAULTS, *changes.FAULTS),
    *(*namespaces.FAULTS, *fleet.FAULTS, *container_faults.FAULTS, *pods.FAULTS),
)
"""All faults in the order in which they run. Faults with equal setups share a running system."""
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
    jobs = list(_jobs(topology or tuple(TOPOLOGIES), names or ("*",)))
    if not jobs:
        raise click.UsageError("no fault has this name here; `--list` prints the catalogue")
    if is_list:
        _list(jobs)
    elif is_table:
        print(report.HEADING, *map(report.row, report.records(report.current_commit())), sep="\n")
    else:
        _run(jobs, repeat)


def _run(jobs: Sequence[Job], repeat: int) -> None:
    """Run the cases that are not recorded; exit with 1 if an invariant of any case did not hold."""
    # Exiting also removes mounts and containers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commit = report.current_commit()
    runs = Counter(record.case for record in report.records(commit))
    left = [job for job in jobs for _ in range(repeat - runs[job.name])]
    until = time.monotonic() + _ENOUGH
    print(report.HEADING, flush=True)
    try:
        for number, (job, (figures, findings)) in enumerate(run_jobs(left, _build, Pace()), 1):
            record = report.Record(job.name, commit, figures, list(findings))
            report.add(record)
            print(report.row(record), flush=True)
            if number < len(left) and time.monotonic() > until:
                print(f"{len(left) - number} cases are left: run the same command again")
                break
    except TopologyError as error:
        raise click.ClickException(str(error)) from error
    asked = {job.name for job in jobs}
    found = [record for record in report.records(commit) if record.findings]
    if broken := [record.case for record in found if record.case in asked]:
        sys.exit(f"not as it must be: {', '.join(broken)}")


def _build(name: str, folder: Path, setup: object) -> Topology:
    return TOPOLOGIES[name](folder, setup)


def _jobs(topologies: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Job]:
    for topology in topologies:
        for fault in FAULTS:
            if topology != fault.topology:
                continue
            for part in fault.parts() if callable(fault.parts) else fault.parts:
                known = (fault.name, f"{fault.name} {part}")
                if any(fnmatchcase(each, name) for each in known for name in names):
                    yield Job(fault, part)


def _list(jobs: list[Job]) -> None:
    print("| fault | what it does | how it is undone | topologies: parts | errors are allowed |")
    print("|---|---|---|---|---|")
    for fault in {id(job.fault): job.fault for job in jobs}.values():
        parts = ", ".join(f"{fault.topology} {job.part}" for job in jobs if job.fault is fault)
        windows = ", ".join(f"{kind}: {window}" for kind, window in fault.windows.items())
        print(f"| {fault.name} | {fault.what} | {fault.undo} | {parts} | {windows or 'never'} |")
