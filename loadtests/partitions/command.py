"""Runs the network partitions from the command line: `python -m loadtests partitions`."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE
from loadtests.machine import this_machine
from loadtests.partitions.cases import PAIRS, Direction, ProcessPair
from loadtests.partitions.judging import HEADING, line, problems
from loadtests.partitions.run import PartitionRun
from testing.namespaces import missing


@click.command("partitions")
@click.option("--seconds", multiple=True, type=float, default=(5.0, 120.0), show_default=True)
@click.option("--pair", "only", multiple=True, help="Pairs whose names begin so.")
@click.option(
    "--direction",
    "directions",
    multiple=True,
    type=click.Choice(Direction, case_sensitive=False),
    help="Whose packets are dropped; by default each in turn.",
)
def partitions_command(
    *, seconds: tuple[float, ...], only: tuple[str, ...], directions: tuple[Direction, ...]
) -> None:
    """Drop packets between every two processes, in network namespaces (as root)."""
    if reason := missing():
        raise click.ClickException(reason)
    # Ended in whatever way, it leaves no namespaces behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    pairs = [pair for pair in PAIRS if not only or pair.name.startswith(only)]
    print(HEADING, flush=True)
    if not asyncio.run(_measure(pairs, directions or tuple(Direction), seconds)):
        sys.exit(1)
    print(this_machine())


async def _measure(
    pairs: Sequence[ProcessPair], directions: Sequence[Direction], seconds: Sequence[float]
) -> bool:
    """Print a line per case with its problems; return whether there were none."""
    is_all_well = True
    # Not the repository: PostgreSQL's owner must reach it.
    with tempfile.TemporaryDirectory(prefix="partitions-") as folder:
        async with PartitionRun(Path(folder), keepalive=DEFAULT_KEEPALIVE) as partition_run:
            for length, pair, direction in _cases(pairs, directions, seconds):
                result = await partition_run.case(pair, direction=direction, seconds=length)
                print(line(result), flush=True)
                for trouble in problems(result, pair):
                    is_all_well = False
                    print(f"  {trouble}", file=sys.stderr, flush=True)
    return is_all_well


def _cases(
    pairs: Sequence[ProcessPair], directions: Sequence[Direction], seconds: Sequence[float]
) -> Iterator[tuple[float, ProcessPair, Direction]]:
    for length in seconds:
        for pair in pairs:
            for direction in directions:
                yield length, pair, direction
