"""`models import`: a Hugging Face folder becomes a model of the repository."""

from pathlib import Path

import click

from backends.errors import StartProblem
from backends.settings import quiet_libraries, read_settings

_FOLDER = click.Path(path_type=Path)


@click.command("import")
@click.argument("path", type=_FOLDER)
@click.option("--models", type=_FOLDER, help="Model repository directory.")
@click.option("--name", help="Name of the model.  [default: that of the folder]")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long; else refuse them.")
@click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
def import_command(
    *, path: Path, models: Path | None, name: str | None, truncate: bool, dry_run: bool
) -> None:
    """Import the Hugging Face folder PATH as the next revision of a model.

    Its ONNX graph is taken where it has one; else a graph of fused operators is built of the
    safetensors of a BERT, DistilBERT, RoBERTa or DeBERTa-v2 model, without torch. The model is
    loaded and run before it gets its place.
    """
    quiet_libraries()
    try:
        # Only making a graph needs `onnx`; serving one does not.
        from backends.importing.work import import_model  # noqa: PLC0415
    except ImportError as error:
        raise StartProblem(
            f"`models import` needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from None
    root = read_settings(models=models).models
    chosen = name or path.resolve().name.lower()
    for line in import_model(path, root, chosen, truncate=truncate, dry_run=dry_run):
        click.echo(line)
