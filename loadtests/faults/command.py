"""Runs faults from the command line: `python -m loadtests faults`."""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import click

from loadtests.faults.catalogue import Fault
from loadtests.faults.containers import Containers
from loadtests.faults.entries import FAULTS
from loadtests.faults.fleet import Fleet
from loadtests.faults.namespaces import Namespaces
from loadtests.faults.pods import Pods
from loadtests.faults.processes import Processes, Setup
from loadtests.faults.report import RESULTS, Record, ResultFile, current_commit, table
from loadtests.faults.run import Job, Pace, run_jobs
from loadtests.faults.topology import Topology, TopologyError

TOPOLOGIES: Mapping[str, Callable[[Path, object], Topology]] = {
    "processes": lambda folder, setup: Processes(folder, cast("Setup | None", setup)),
    "namespaces": lambda folder, setup: Fleet(folder) if setup == "fleet" else Namespaces(folder),
    "containers": lambda _, setup: Containers(setup),
    "pods": lambda folder, _: Pods(folder),
}
"""How each topology is made in an empty folder."""
_ENOUGH = 900.0
"""Seconds after which no further case begins, so that a run ends within 20 minutes."""


@click.command("faults")
@click.option("--topology", multiple=True, type=click.Choice(list(TOPOLOGIES)))
@click.option("--fault", "names", multiple=True, help="A fault, or fault and part; `*` matches.")
@click.option("--list", "is_list", is_flag=True, help="Print the catalogue.")
@click.option("--table", "is_table", is_flag=True, help="Print the results of this commit.")
@click.option("--repeat", default=1, show_default=True, help="Times that each case runs.")
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
    jobs = list(_jobs(topology or tuple(TOPOLOGIES), names, repeat))
    if not jobs:
        raise click.UsageError("no fault has this name here; `--list` prints the catalogue")
    if is_list:
        _list(jobs)
        return
    file, commit = ResultFile(RESULTS), current_commit()
    if is_table:
        print("\n".join(table(file.records(commit).values())))
        return
    _run(jobs, file, commit)


def _run(jobs: Sequence[Job], file: ResultFile, commit: str) -> None:
    """Run the jobs and print each result; exit with 1 if something is not as it must be."""
    print("\n".join(table([])), flush=True)

    def show(record: Record) -> None:
        print(list(table([record]))[-1], flush=True)

    # What is mounted, or runs in a container, is removed then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        left = run_jobs(
            jobs,
            lambda name, folder, setup: TOPOLOGIES[name](folder, setup),
            file,
            commit=commit,
            pace=Pace(),
            within=_ENOUGH,
            show=show,
        )
    except TopologyError as error:
        raise click.ClickException(f"the topology did not start: {error}") from error
    if left:
        print(f"{len(left)} cases are left: run the same command again")
    if broken := file.broken(commit, {job.name for job in jobs}):
        sys.exit(f"not as it must be: {', '.join(broken)}")


def _jobs(topologies: tuple[str, ...], names: tuple[str, ...], repeat: int) -> Iterator[Job]:
    for topology in topologies:
        for fault in FAULTS:
            if topology not in fault.topologies:
                continue
            for part in _parts(topology, fault):
                for number in range(repeat):
                    if not names or any(_matches(name, fault.name, part) for name in names):
                        yield Job(topology, fault, part, number)


def _matches(pattern: str, fault: str, part: str) -> bool:
    return fnmatchcase(fault, pattern) or fnmatchcase(f"{fault} {part}", pattern)


def _parts(topology: str, fault: Fault) -> list[str]:
    if fault.play is not None:
        return [""]
    if fault.parts:
        return list(fault.parts)
    return list(TOPOLOGIES[topology](Path(), fault.setup).parts(fault.name))


def _list(jobs: list[Job]) -> None:
    print("| fault | what it does | how it is undone | topologies: parts | errors are allowed |")
    print("|---|---|---|---|---|")
    for fault in {id(job.fault): job.fault for job in jobs}.values():
        mine = [job for job in jobs if job.fault is fault]
        parts = ", ".join(dict.fromkeys(f"{job.topology} {job.part}".strip() for job in mine))
        windows = ", ".join(f"{kind}: {window}" for kind, window in fault.windows.items())
        print(f"| {fault.name} | {fault.what} | {fault.undo} | {parts} | {windows or 'never'} |")
