"""Implements `models import`: converts a Hugging Face folder to a revision of a model."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from sluicegate.backends.commands import MODELS_OPTION, say
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.padded_batch import INPUTS
from sluicegate.backends.model_tools.comparing.asking import REFERENCE_OPTION
from sluicegate.backends.model_tools.tuning.options import (
    choose_variant,
    needs_onnx,
    variant_options,
)
from sluicegate.backends.settings import quiet_libraries, read_settings

_OUTPUTS = ("logits", "pooled", "tokens")


@click.command(
    "import",
    epilog="\b\nExample:\n"
    "  sluicegate models import ./checkpoint --models ./models --name sentiment",
)
@click.argument("source")
@MODELS_OPTION
@click.option("--name", help="Name of the model.  [default: the folder's name, or the source's]")
@click.option("--truncate", is_flag=True, help="Truncate long texts instead of refusing them.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=INPUT",
    help="Use the graph's input INPUT as NAME.",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="KIND=OUTPUT",
    help="Use the graph's output OUTPUT as KIND.",
)
@click.option("--labels", help="Labels of the logits, in order, separated by commas.")
@click.option("--revision", help="Branch, tag or commit on the hub.")
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME[=PATH]",
    help="Let requests choose the LoRA adapter PATH by NAME, or merge this one of "
    "jina-embeddings-v3 (`none`: no adapter).",
)
@click.option("--base", metavar="SOURCE", help="The base model, if SOURCE is a LoRA adapter.")
@click.option("--ignore", "ignored", multiple=True, metavar="NAME", help="Leave out this file.")
@variant_options
@click.option("--quick", is_flag=True, help="Do not measure speed, memory and load time.")
@REFERENCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
@click.option("--reload", "reloads", is_flag=True, help="Reload the models of a running gateway.")
@click.option("--data-dir", metavar="DIRECTORY", help="The gateway's data directory, for --reload.")
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
    adapters: tuple[str, ...],
    base: str | None,
    ignored: tuple[str, ...],
    quick: bool,
    reference: Path | None,
    as_json: bool,
    dry_run: bool,
    reloads: bool,
    data_dir: str | None,
    **variant: Any,
) -> None:
    """Import the checkpoint SOURCE as the next revision of a model.

    SOURCE is a folder as `save_pretrained` writes it, `hf://owner/name[@revision]` on the Hugging
    Face hub (or `owner/name`), `oci://registry/name:tag` or `mlflow://name/version`. The import
    uses the ONNX graph in the folder. If the folder has no graph, the import builds one from the
    safetensors, without torch. It can do this for the model families that docs/models.md lists. For
    other families, it needs optimum, which exports the graph. Pickles are never read.

    The import loads and runs the model before it publishes the revision. It prints what it read and
    from where, the results of the examples in the checkpoint's README.md, how the results differ
    from the reference library's (if the library is installed here or in the environment of
    --reference), the model's speed and memory on this machine, and the next commands. If results
    differ, or if they cannot be compared in spite of --reference, it writes nothing, and the exit
    code is 1.

    A `model.yaml` in the folder is kept. Its fields override the fields that the import infers. If
    an ONNX graph has other names for inputs and outputs, map them to the names that a backend uses.
    With --input, map inputs to `input_ids`, `attention_mask` and `token_type_ids`. With --output,
    map outputs to `logits`, `pooled` (one vector per text) and `tokens` (one vector per token).

    If SOURCE is a LoRA adapter, the import merges it into the model that --base names. If SOURCE is
    a base model, name its adapters with --adapter NAME=PATH. The model then has all of them, and
    `prompt_name` of a request chooses one. It does so for jina-embeddings-v3 without --adapter.

    The import refuses a folder that has a file with weights or modules that it cannot use. --ignore
    leaves such a file out. The import always leaves out training state and second copies of the
    weights.

    A running gateway serves the new revision after `sluicegate models reload`. With --reload, the
    import itself reloads the models at its end. It calls the gateway at `SLUICEGATE_ADMIN_URL`, or
    the instance that runs on --data-dir.

    With --precision, the import also makes a variant of the graph in another precision. If the
    variant stays within the bounds, it becomes a second new revision. Otherwise, its measurements
    are printed and the exit code is 1.
    """
    # Options are checked before files are downloaded from the hub.
    wanted = choose_variant(**variant)
    given = _fields(inputs, outputs, labels, truncate=truncate)
    chosen_adapters, merged = _adapters(adapters)
    if merged is not None:
        given["adapter"] = merged
    if reloads:
        # `sluicegate models import` handles `--reload`, because this package knows no gateway.
        raise StartProblem("`--reload` is an option of `sluicegate models import`")
    if data_dir is not None:
        raise StartProblem("`--data-dir` is used only with `--reload`; add `--reload`")
    quiet_libraries()
    with needs_onnx("models import"):
        from sluicegate.backends.model_tools.importing.import_model import (  # noqa: PLC0415
            TrialOptions,
            import_model,
        )
        from sluicegate.backends.model_tools.importing.places import open_place  # noqa: PLC0415
    settings = read_settings(models=models)
    with ExitStack() as stack:
        found = stack.enter_context(open_place(source, revision=revision))
        under = None if base is None else stack.enter_context(open_place(base)).path
        report = import_model(
            found.path,
            settings,
            name=name or found.name,
            given=given,
            base=under,
            adapters={
                each: stack.enter_context(open_place(path)).path
                for each, path in chosen_adapters.items()
            },
            files=found.files,
            ignored=ignored,
            variant=wanted,
            trial=TrialOptions(compares=True, measures=not quick, python=reference),
            dry_run=dry_run,
            # The document alone is on standard output.
            echo=partial(say, err=as_json),
        )
    if as_json:
        click.echo(json.dumps({**report.document(), "source": source}, indent=2))
    if not report.accepted:
        sys.exit(1)


def _adapters(given: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Return the folders of adapters by their names, and the adapter to merge, if any."""
    named = [each.partition("=") for each in given]
    folders = {name: path for name, separator, path in named if separator}
    if not given or (len(folders) == len(given) and all(folders) and all(folders.values())):
        return folders, None
    if len(given) == 1 and not folders:
        return {}, given[0]
    raise StartProblem(
        "`--adapter` must be NAME=PATH, each name once, or once the name of an adapter to merge"
    )


def _fields(
    inputs: Sequence[str], outputs: Sequence[str], labels: str | None, *, truncate: bool
) -> dict[str, Any]:
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
        names = ", ".join(known)
        raise StartProblem(f"`{option}` must be NAME=VALUE; NAME is one of {names}, each once")
    return pairs
