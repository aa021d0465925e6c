"""Compares the answers of both listeners with their OpenAPI documents."""

import click

from loadtests.fuzz_api.run import DOCUMENTS, check, documented_gateway
from loadtests.fuzzing import end_with, seeded_run
from loadtests.options import seed


@click.command("fuzz-api")
@click.option("--examples", default=100, help="Cases of each operation.")
@seed
@click.option("--document", type=click.Choice(DOCUMENTS), multiple=True, help="These only.")
def fuzz_api_command(*, examples: int, seed: int | None, document: tuple[str, ...]) -> None:
    """Check the answers of both listeners against their OpenAPI documents."""
    wrong = []
    with seeded_run(seed) as (folder, chosen), documented_gateway(folder) as gateway:
        for name in document or DOCUMENTS:
            done = check(gateway, folder, name, examples=examples, seed=chosen)
            click.echo(f"\n## {name}\n\n{done.report}")
            if not done.is_true:
                wrong.append(f"answers differ from the document of {name}")
    end_with(wrong)
