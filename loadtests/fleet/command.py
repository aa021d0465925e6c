"""Runs the failovers of a fleet from the command line: `python -m loadtests fleet`."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from loadtests.chaos_sentinel import LedgerComparison
from loadtests.fleet.faults import Fault
from loadtests.fleet.judging import (
    LONGEST_BILLING,
    LONGEST_CHANGE,
    LONGEST_REDIS,
    RoundResult,
    allowed_over,
    final_problems,
    problems,
)
from loadtests.fleet.run import FleetRun
from loadtests.fleet.system import RULES, Fleet
from loadtests.machine import this_machine
from testing.namespaces import missing
from testing.postgresql import programs

_HEADING = (
    "| PostgreSQL | away | billed again | Redis away | 200 | 429 | other | slowest | before"
    " | over the limit (bound) | changes (503) | slowest change | ledger degraded |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@click.command("fleet")
@click.option("--rounds", default=10, show_default=True, help="Failovers of each.")
@click.option("--fault", "only", multiple=True, type=click.Choice(Fault, case_sensitive=False))
@click.option("--isolated", is_flag=True, hidden=True, help="This is the namespace of the run.")
def fleet_command(*, rounds: int, only: tuple[Fault, ...], isolated: bool) -> None:
    """Fail PostgreSQL and the state Redis of four gateways over, under load (as root)."""
    if programs() is None:
        raise click.ClickException("PostgreSQL is not installed (make install-system)")
    if not isolated:
        if reason := missing():
            raise click.ClickException(reason)
        # Packets are dropped in a network namespace of its own, which ends with it.
        own = [sys.executable, "-m", "loadtests", *sys.argv[1:], "--isolated"]
        os.execvp("unshare", ["unshare", "--net", *own])  # noqa: S606, S607 - of the caller
    # Ended in whatever way, it leaves no processes behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    loopback = ("ip", "link", "set", "lo", "up")
    subprocess.run(loopback, check=True)
    _announce()
    faults = list(itertools.islice(itertools.cycle(only or Fault), rounds))
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder)) as fleet:
        broken = asyncio.run(_measure(fleet, faults))
    print(this_machine())
    if broken:
        sys.exit(f"does not hold: {'; '.join(broken)}")


def _announce() -> None:
    """Print the bounds, which depend on nothing that is measured but the time without Redis."""
    for rule in RULES:
        bounds = {away: round(allowed_over(rule, redis_away=away)) for away in (2.0, 5.0)}
        print(f"Over {rule.capacity:g} requests at most, by seconds without Redis: {bounds}")
    print(
        f"Redis away at most {LONGEST_REDIS:g} s, billing after {LONGEST_BILLING:g} s,"
        f" a change {LONGEST_CHANGE:g} s\n\n{_HEADING}",
        flush=True,
    )


async def _measure(fleet: Fleet, faults: Sequence[Fault]) -> list[str]:
    """Print a line per round and the comparison; return what does not hold."""
    broken = []
    measured = FleetRun(fleet)
    for number, fault in enumerate(faults):
        result = await measured.round(number, fault)
        print(_line(result), flush=True)
        broken += [f"round {number + 1}: {problem}" for problem in problems(result)]
    compared, lost = await measured.compare()
    print(_summary(compared))
    return broken + final_problems(compared, lost_changes=lost)


def _line(result: RoundResult) -> str:
    over = ", ".join(
        f"{one.over:+.0f} ({allowed_over(one.rule, redis_away=result.redis_away):.0f})"
        for one in result.windows
    )
    cells = (
        result.fault.value,
        f"{result.ledger_away:.1f} s",
        f"{result.billed_after:.1f} s",
        f"{result.redis_away:.1f} s",
        str(result.answered),
        str(result.refused),
        str(result.failed),
        f"{result.slowest * 1000:.0f} ms",
        f"{result.slowest_before * 1000:.0f} ms",
        over,
        f"{result.changes} ({result.changes_refused})",
        f"{result.slowest_change:.1f} s",
        str(result.without_ledger),
    )
    return f"| {' | '.join(cells)} |"


def _summary(compared: LedgerComparison) -> str:
    return (
        f"\nAnswered {compared.answered}: {compared.missing} not in the ledger,"
        f" {compared.surplus} in it without an answer, {compared.twice} twice."
    )
