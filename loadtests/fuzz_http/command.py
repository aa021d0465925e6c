"""Sends valid, unusual and invalid HTTP requests to real gateways."""

import click

from loadtests.fuzz_http.client import Finding
from loadtests.fuzz_http.run import HTTP, MEMORY_BOUND, FuzzResult, Traffic, fuzz
from loadtests.fuzzing import end_with, print_answers, seeded_run
from loadtests.options import seed

_SHOWN = 3000


@click.command("fuzz-http")
@click.option("--requests", default=1_000_000)
@seed
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
    with seeded_run(seed) as (folder, chosen):
        done = fuzz(
            folder, seed=chosen, requests=requests, only=only, without=without, traffic=traffic
        )
    rate = done.requests / done.seconds
    print(
        f"{done.requests} requests on {done.connections} connections in {done.seconds:.0f} s,"
        f" {rate:.0f} a second, seed {done.seed}"
    )
    print_answers(done.answers)
    print(f"\nmost resident, in MiB (bound {MEMORY_BOUND // 1024**2}):")
    for name, most in sorted(done.memory.items()):
        print(f"  {name}: {most // 1024**2}")
    end_with([*(describe_finding(done, one) for one in done.findings), *done.trouble])


def describe_finding(done: FuzzResult, finding: Finding) -> str:
    """Return a finding with its bytes and the command that reproduces it."""
    again = f"make fuzz NAME=http ARGS='--seed {done.seed} --only {finding.number}'"
    return (
        f"{finding.what}\n  again: {again}\n"
        f"  sent: {finding.sent[:_SHOWN]!r}\n  received: {finding.received[-_SHOWN:]!r}"
    )
