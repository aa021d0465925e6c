"""Sends valid, unusual and invalid HTTP requests to real gateways."""

import click

from loadtests.fuzz_http.run import Traffic, run_and_show
from loadtests.options import only, seed


@click.command("fuzz-http")
@click.option("--requests", default=1_000_000)
@seed
@only
def fuzz_http_command(*, requests: int, seed: int | None, only: int | None) -> None:
    """Send valid, unusual and invalid requests; find mixed-up answers, hangs and crashes."""
    run_and_show(Traffic(), requests=requests, seed=seed, only=only)
