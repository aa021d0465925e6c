"""Sends requests of five tenants to the routes of all dialects, and looks for mixed-up answers."""

import click

from loadtests.fuzz_dialects.traffic import DialectTraffic
from loadtests.fuzz_http.run import run_and_show
from loadtests.options import only, seed


@click.command("fuzz-dialects")
@click.option("--requests", default=100_000)
@seed
@only
def fuzz_dialects_command(*, requests: int, seed: int | None, only: int | None) -> None:
    """Send requests of several tenants to the routes of all dialects; find mixed-up answers."""
    dialects = DialectTraffic()
    try:
        run_and_show(dialects, requests=requests, seed=seed, only=only)
    finally:
        click.echo(f"{dialects.hits} answers over HTTP were whole hits; {dialects.calls} over gRPC")
