"""Builds the command that imports a model."""

from pathlib import Path


def import_arguments(source: Path, models: Path, *options: str) -> list[str]:
    """Return the arguments of an import of `source` into `models` that measures nothing."""
    return ["models", "import", "--quick", str(source), "--models", str(models), *options]
