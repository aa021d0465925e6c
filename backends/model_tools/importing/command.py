"""Implements `models import`: turns a Hugging Face folder into a model of the repository."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from backends.errors import StartProblem
from backends.executors.padded_batch import INPUTS
from backends.model_tools.tuning.variant_options import VariantOptions, variant_options
from backends.settings import quiet_libraries, read_settings

_OUTPUTS = ("logits", "pooled", "tokens")
_FOLDER = click.Path(path_type=Path)


@click.command("import")
@click.argument("source", metavar="PATH")
@click.option("--models", type=_FOLDER, help="Model repository directory.")
@click.option("--name", help="Name of the model.  [default: that of the folder]")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long; else refuse them.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=INPUT", help="An input's name.")
@click.option("--output", "outputs", multiple=True, metavar="KIND=OUTPUT", help="An output's name.")
@click.option("--labels", help="The labels of the logits, in order, with commas between them.")
@click.option("--revision", help="Branch, tag or commit, of a name on the hub.")
@click.option("--ignore", "ignored", multiple=True, metavar="NAME", help="Leave this file out.")
@variant_options
@click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
@click.option("--reload", "reloads", is_flag=True, help="Then have a running gateway serve it.")
@click.option("--data-dir", metavar="DIRECTORY", help="That of the gateway, with --reload.")
def import_command(
    *,
    source: str,
    models: Path | None,
    name: str | None,
    truncate: bool,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    labels: str | None,
    revision: str | None,
    ignored: tuple[str, ...],
    dry_run: bool,
    reloads: bool,
    data_dir: str | None,
    wanted: VariantOptions | None,
) -> None:
    """Import the Hugging Face folder PATH as the next revision of a model.

    PATH may be a name on the hub (`owner/name`) where that can be reached. An ONNX graph is taken
    where there is one; else a graph of fused operators is built of the safetensors of a family that
    docs/models.md lists, without torch; others are exported by optimum where it is installed. The
    model is loaded and run before it gets its place.

    A `model.yaml` in the folder is kept, and what it says wins over what is inferred. Where an ONNX
    graph has names of its own, say which of its inputs is `input_ids`, `attention_mask` or
    `token_type_ids` with --input, and which of its outputs `logits`, `pooled` (a vector a text) or
    `tokens` (a vector a token) with --output.

    The import refuses files with weights or modules that no answer would use; --ignore leaves one
    out. It leaves out training state and second copies of the weights by itself.

    A gateway that is running serves the new revision after `sluicegate models reload`. With
    --reload this is done at the end, at the address of `SLUICEGATE_ADMIN_URL` or of the instance
    that runs on --data-dir.

    With --precision, a variant of the graph becomes the revision after it if it stays within
    the bounds; else its numbers are printed and the exit code is 1.
    """
    if reloads:
        # Only that command knows a gateway.
        raise StartProblem("`--reload` is an option of `sluicegate models import`")
    if data_dir is not None:
        raise StartProblem("`--data-dir` says where `--reload` finds the gateway: give both")
    quiet_libraries()
    try:
        # Only making a graph needs `onnx`; serving one does not.
        from backends.model_tools.importing.hub import find_folder  # noqa: PLC0415
        from backends.model_tools.importing.work import import_model  # noqa: PLC0415
    except ImportError as error:
        raise StartProblem(
            f"`models import` needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from None
    settings = read_settings(models=models)
    found = find_folder(source, revision=revision)
    chosen = name or Path(source).resolve().name.lower()
    if not import_model(
        found.path,
        settings,
        name=chosen,
        given=_fields(inputs, outputs, labels, truncate=truncate),
        files=found.files,
        ignored=ignored,
        variant=wanted,
        dry_run=dry_run,
        echo=click.echo,
    ):
        sys.exit(1)


def _fields(
    inputs: Sequence[str], outputs: Sequence[str], labels: str | None, *, truncate: bool
) -> dict[str, Any]:
    """Return the fields of a `model.yaml` that options ask for."""
    fields: dict[str, Any] = {"truncate": True} if truncate else {}
    if inputs:
        fields["inputs"] = _pairs("--input", inputs, INPUTS)
    named = _pairs("--output", outputs, _OUTPUTS)
    if "logits" in named:
        fields["output"] = named.pop("logits")
    if named:
        fields["outputs"] = named
    if labels is not None:
        fields["labels"] = [label.strip() for label in labels.split(",")]
    return fields


def _pairs(option: str, given: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    pairs = dict(each.split("=", 1) for each in given if "=" in each)
    if len(pairs) != len(given) or not set(pairs) <= set(known):
        raise StartProblem(f"`{option}` is NAME=..., with a name of {', '.join(known)}, each once")
    return pairs
