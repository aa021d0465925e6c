"""Runs the HTTP fuzzer from the command line: `python -m loadtests fuzz-http`."""

import random
import sys
import tempfile
from pathlib import Path

import click

from loadtests.fuzz_http.client import Finding
from loadtests.fuzz_http.run import HTTP, MEMORY_BOUND, FuzzResult, Traffic, fuzz

_SHOWN = 3000


@click.command("fuzz-http")
@click.option("--requests", default=1_000_000, show_default=True)
@click.option("--seed", type=int, help="Do a run again; by default another each time.")
@click.option("--only", type=int, help="Play only the connection of this number.")
@click.option("--without", multiple=True, help="Leave a kind of request out.")
def fuzz_http_command(
    *, requests: int, seed: int | None, only: int | None, without: tuple[str, ...]
) -> None:
    """Send valid, unusual and invalid requests; find crossed answers, hangs and crashes."""
    run_and_show(requests=requests, seed=seed, only=only, without=without)


def run_and_show(
    *,
    requests: int,
    seed: int | None,
    only: int | None = None,
    without: tuple[str, ...] = (),
    traffic: Traffic = HTTP,
) -> None:
    """Run the fuzzer, print the result, and fail where anything was found."""
    chosen = random.SystemRandom().randrange(10**9) if seed is None else seed
    click.echo(f"seed {chosen}")
    with tempfile.TemporaryDirectory() as folder:
        done = fuzz(
            Path(folder),
            seed=chosen,
            requests=requests,
            only=only,
            without=without,
            traffic=traffic,
        )
    show(done)
    if done.findings or done.trouble:
        sys.exit(
            "\n\n".join([*(describe_finding(done, one) for one in done.findings), *done.trouble])
        )


def show(done: FuzzResult) -> None:
    """Print the result of a run."""
    rate = done.requests / done.seconds
    print(
        f"{done.requests} requests on {done.connections} connections in {done.seconds:.0f} s,"
        f" {rate:.0f} a second, seed {done.seed}"
    )
    print("| kind | status | answers |\n|---|---|---|")
    for (kind, status), count in sorted(done.answers.items()):
        print(f"| {kind} | {status} | {count} |")
    print(f"\nmost resident, in MiB (bound {MEMORY_BOUND // 1024**2}):")
    for name, most in sorted(done.memory.items()):
        print(f"  {name}: {most // 1024**2}")


def describe_finding(done: FuzzResult, finding: Finding) -> str:
    """Return a finding with its bytes and the command that reproduces it."""
    again = f"make fuzz NAME=http ARGS='--seed {done.seed} --only {finding.number}'"
    return (
        f"{finding.what}\n  again: {again}\n"
        f"  sent: {finding.sent[:_SHOWN]!r}\n  received: {finding.received[-_SHOWN:]!r}"
    )
