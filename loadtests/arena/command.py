"""Runs the production layout in containers, fault after fault: `python -m loadtests arena`."""

import fnmatch
import sys
from collections import defaultdict
from pathlib import Path

import click

from loadtests.arena import images, podman, topology
from loadtests.arena.cases import cases
from loadtests.arena.faults import clean_up
from loadtests.arena.record import ResultFile, table
from loadtests.arena.run import run_cases
from loadtests.arena.system import Arena

_RECORD = Path(__file__).parents[1] / "results" / "arena.jsonl"


@click.command("arena")
@click.option("--only", multiple=True, help="Cases, such as `gateway-1:cut-in` or `*:kill`.")
@click.option("--requests", default=10_000, show_default=True, help="Requests of each case.")
@click.option(
    "--rate",
    default=0.0,
    help="Requests a second.  [default: as the fault's time needs, at most 120]",
)
@click.option("--again", is_flag=True, help="Run cases that the file has, too.")
@click.option("--file", "path", type=click.Path(path_type=Path), default=_RECORD)
@click.option("--list", "is_list", is_flag=True, help="Only name the cases.")
@click.option("--table", "is_table", is_flag=True, help="Only print the table of the file.")
@click.option("--build/--no-build", default=True, help="Build the images first.")
@click.option("--anew", is_flag=True, help="Build the base images anew, too.")
@click.option("--fresh", is_flag=True, help="Begin with empty volumes.")
@click.option("--keep", is_flag=True, help="Leave the containers running.")
def arena_command(
    *,
    only: tuple[str, ...],
    requests: int,
    rate: float,
    again: bool,
    path: Path,
    is_list: bool,
    is_table: bool,
    build: bool,
    anew: bool,
    fresh: bool,
    keep: bool,
) -> None:
    """The layout of compose.yaml in containers: each killed, stopped, frozen, cut off, ...

    Needs root, podman and debootstrap. Goes on where a run was stopped.
    """
    record = ResultFile(path)
    if is_table:
        click.echo("\n".join(table(record.results().values())))
        return
    chosen = [
        case
        for case in cases(topology.services(defaultdict(str)))
        if not only or any(fnmatch.fnmatch(case.name, pattern) for pattern in only)
    ]
    if is_list:
        click.echo("\n".join(f"{case.name}  errors allowed: {case.window}" for case in chosen))
        return
    _prepare(build=build, anew=anew, fresh=fresh)
    done = {} if again else record.results()
    arena = Arena()
    clean_up(arena)
    arena.start()
    try:
        left = [case for case in chosen if case.name not in done]
        click.echo(f"{len(left)} of {len(chosen)} cases to run")
        run_cases(arena, left, record, requests=requests, rate=rate)
    finally:
        if not keep:
            topology.remove(volumes=False)
    results = record.results()
    shown = [results[case.name] for case in chosen if case.name in results]
    click.echo("\n".join(table(shown)))
    if any(result.findings for result in shown):
        sys.exit("not everything went as it must")


def _prepare(*, build: bool, anew: bool, fresh: bool) -> None:
    if lack := podman.missing():
        sys.exit(lack)
    podman.prepare()
    if fresh:
        topology.remove(volumes=True)
        (podman.HOME / "keys.json").unlink(missing_ok=True)
    if build:
        images.build(anew=anew)
