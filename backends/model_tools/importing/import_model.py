"""Imports a folder: converts it, runs the model, and publishes it in the repository."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import Tokenizer

from sluicegate.backends.errors import BackendError, ItemRefused, StartProblem
from sluicegate.backends.model_tools.description import describe_model
from sluicegate.backends.model_tools.importing.convert import TOKENIZER, convert_source
from sluicegate.backends.model_tools.importing.finishing import is_half_file
from sluicegate.backends.model_tools.importing.leftovers import check_leftovers, files_of
from sluicegate.backends.model_tools.importing.source import CheckpointFolder, open_source
from sluicegate.backends.model_tools.running import answer, open_model
from sluicegate.backends.model_tools.tuning.optimize import make_variant
from sluicegate.backends.model_tools.tuning.options import Echo, VariantOptions
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.names import NAME
from sluicegate.backends.repository.publishing import publish_revision
from sluicegate.backends.repository.staging import open_staging
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import BackendSettings
from sluicegate.wire.protocol import PARAMETERS, ChooseItem, EmbedItem, ModelInfo, Task

_STAGING = ".importing-"
# The largest number of special tokens to try. A tokenizer may have thousands.
_MOST_SPECIAL = 16


def import_model(
    folder: Path,
    settings: BackendSettings,
    *,
    name: str,
    given: Mapping[str, Any],
    base: Path | None = None,
    adapters: Mapping[str, Path] = MappingProxyType({}),
    files: Sequence[str] = (),
    ignored: Sequence[str] = (),
    variant: VariantOptions | None,
    dry_run: bool,
    echo: Echo,
) -> bool:
    """Write the next revision of a model, atomically, and print a report.

    Fields in `given` override the fields of the folder's `model.yaml`. `files` has the names of all
    the model's files, if some of them are not in the folder. The files `ignored` are left out.
    `base` is the folder of the base model, if the folder has an adapter. `adapters` are the folders
    of adapters of this model, by the names with which requests choose one.

    Returns:
        Whether the `variant` in another precision was accepted; true without a variant.

    Raises:
        StartProblem: the folder has no model that can be served. Nothing is written then.
    """
    root = settings.models
    if not NAME.fullmatch(name):
        raise StartProblem(
            f"`{name}` is not a valid model name; use lower-case letters, digits, `.`, `_` and `-`"
        )
    try:
        with open_staging(root, _STAGING) as staging:
            source = open_source(folder, given, base=base, adapters=adapters, ignored=ignored)
            if variant is not None and variant.judge is None:
                source, variant = _with_half_precision(source, variant), None
            left_out = check_leftovers(source, files or files_of(folder), ignored)
            origin, info = _convert(source, staging, name)
            model = read_catalogue(staging).models[name]
            for line in (
                f"made of                {origin}",
                *[f"left out               {line}" for line in left_out],
                *describe_model(info, model),
            ):
                echo(line)
            accepted = True
            if variant is not None:
                here = msgspec.structs.replace(settings, models=staging)
                made = make_variant(here, name, variant, dry_run=False, echo=echo)
                accepted = made is not None
            if not dry_run:
                for revision in sorted((staging / name).glob("[0-9]*")):
                    echo(f"written to             {publish_revision(revision, root / name)}")
                echo("served by              a running gateway after `sluicegate models reload`")
            return accepted
    except OSError as error:
        raise StartProblem(f"cannot write to `{root}`: {error}") from None


def _with_half_precision(source: CheckpointFolder, variant: VariantOptions) -> CheckpointFolder:
    """Return the source with the precision in its fields, if its graph is already in fp16.

    Raises:
        StartProblem: the graph is not in fp16, and there are no texts to judge a variant.
    """
    if source.graph is None or not is_half_file(source.graph):
        variant.golden_file()
    return msgspec.structs.replace(source, fields={**source.fields, "profile": variant.precision})


def _convert(source: CheckpointFolder, staging: Path, name: str) -> tuple[str, ModelInfo]:
    """Write a revision and run it.

    Return the origin of the graph, and the model as a backend describes it.
    """
    entry, folder = staging / name / "1", source.folder
    try:
        origin = convert_source(source, entry)
        return origin, asyncio.run(_try(staging, name))
    except StartProblem as error:
        # The message must name the operator's folder, not the hidden folder in which the revision
        # is tried.
        own = source.graph or folder
        named = str(error).replace(str(entry / "model.onnx"), str(own))
        hint = ""
        if (
            source.graph is not None
            and "profile" not in source.fields
            and is_half_file(source.graph)
        ):
            hint = "; the graph is in fp16: `--precision fp16` allows fp16's tolerance"
        raise StartProblem(named.replace(str(entry), str(folder)) + hint) from None


async def _try(staging: Path, name: str) -> ModelInfo:
    """Load the model and run each of its tasks, as a backend would."""
    async with open_model(BackendSettings(models=staging, threads=1), name) as entry:
        texts = _trial_texts(staging / name / "1" / TOKENIZER)
        info = entry.served_model.info
        for task in info.tasks:
            await _try_task(entry, Task(task), texts, name, labels=info.labels)
        return info


def _trial_texts(tokenizer: Path) -> list[str]:
    """Return short texts, one for each special token that a text may contain."""
    added = Tokenizer.from_file(str(tokenizer)).get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special][:_MOST_SPECIAL]
    return ["a", "A text, to be read once.", *(f"a {token} b" for token in special)]


async def _try_task(
    entry: ModelSetEntry,
    task: Task,
    texts: Sequence[str],
    name: str,
    *,
    labels: Sequence[str] | None,
) -> None:
    """Run the task on every text and, if the task takes pairs, on one pair of texts.

    A model without `labels` finds entities of the types that a request names.

    Raises:
        StartProblem: the model fails on a text.
    """
    kind: Any = PARAMETERS[task]
    own: dict[Task, dict[str, Any]] = {
        Task.ZERO_SHOT: {"labels": ["a", "b"]},
        Task.RERANK: {"query": texts[-1]},
        Task.ENTITIES: {} if labels else {"labels": ["a", "b"]},
    }
    parameters = kind(**own.get(task, {}))
    items: list[Any] = list(texts)
    if task is Task.CHOOSE:
        items = [ChooseItem(prompt=text, choices=list(texts[:2])) for text in texts]
    elif task is Task.EMBED and entry.served_model.info.outputs:
        names = entry.served_model.info.outputs
        items = [EmbedItem(input=text, output=name) for text in texts for name in names]
    elif task is Task.CLASSIFY:
        items += [(text, texts[0]) for text in texts]
    for item in items:
        try:
            await answer(entry, task, item, parameters)
        except ItemRefused:
            continue  # the text is too long for the model
        except BackendError as error:
            raise StartProblem(
                f"`{name}` cannot be served: a trial of its task `{task}` failed: {error}"
            ) from None
