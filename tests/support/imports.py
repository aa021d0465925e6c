"""Imports models as an operator does."""

from pathlib import Path

from click.testing import CliRunner, Result

from sluicegate.backends.cli import main


def import_arguments(source: object, models: Path, *options: object) -> list[str]:
    """Return the arguments of an import of `source` into `models` that measures nothing."""
    return ["models", "import", "--quick", *map(str, (source, "--models", models, *options))]


def run_import(source: object, models: Path, *options: object) -> Result:
    """Import `source` into `models` in this process, and measure nothing."""
    return CliRunner().invoke(main, import_arguments(source, models, *options))
