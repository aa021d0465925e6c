"""Runs the API fuzzer from the command line: `python -m loadtests fuzz-api`."""

import random
import sys
import tempfile
from pathlib import Path

import click

from loadtests.fuzz_api.run import DOCUMENTS, check, documented_gateway


@click.command("fuzz-api")
@click.option("--examples", default=100, show_default=True, help="Cases of each operation.")
@click.option("--seed", type=int, help="Do a run again; by default another each time.")
@click.option("--document", type=click.Choice(DOCUMENTS), multiple=True, help="These only.")
def fuzz_api_command(*, examples: int, seed: int | None, document: tuple[str, ...]) -> None:
    """Check the answers of both listeners against their OpenAPI documents."""
    chosen = random.SystemRandom().randrange(10**9) if seed is None else seed
    click.echo(f"seed {chosen}")
    are_true = True
    with tempfile.TemporaryDirectory() as place, documented_gateway(Path(place)) as gateway:
        for name in document or DOCUMENTS:
            done = check(gateway, Path(place), name, examples=examples, seed=chosen)
            click.echo(f"\n## {name}\n\n{done.report}")
            are_true = are_true and done.is_true
    sys.exit(0 if are_true else 1)
