"""Checks a real Triton as a region of the gateway."""

import click

from loadtests.triton import check


@click.command("triton")
@click.option("--texts", default=200, help="Compared with our own executor.")
@click.option("--rate", default=40.0, help="Requests a second under faults.")
@click.option("--quiet", default=4.0, help="Seconds before and after a fault.")
@click.option("--away", default=4.0, help="Seconds that Triton is away.")
@click.option("--repeats", default=30, help="Batches of each shape on the wire.")
def triton_command(*, texts: int, rate: float, quiet: float, away: float, repeats: int) -> None:
    """Compare answers through Triton with ours, and let Triton fail under load."""
    check.check(texts=texts, rate=rate, quiet=quiet, away=away, repeats=repeats)
