"""Builds the demo models: `python -m sluicegate.backends.model_tools.demo --output DIR`."""

from pathlib import Path

import click

from sluicegate.backends.model_tools.demo.build import build_demo_models
from sluicegate.backends.model_tools.demo.source import DemoModelsError

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--output", type=_FOLDER, required=True, help="Model repository to write.")
@click.option("--source", type=_FOLDER, help="Folder with the published weights.")
def main(output: Path, source: Path | None) -> None:
    """Build the demo models."""
    try:
        build_demo_models(output, click.echo, source=source)
    except DemoModelsError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
