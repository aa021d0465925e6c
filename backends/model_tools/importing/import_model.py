"""Imports a folder: converts it, runs the model, and publishes it in the repository."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import Tokenizer

from sluicegate.backends.errors import BackendError, ItemRefused, StartProblem
from sluicegate.backends.model_tools.description import Field, model_fields
from sluicegate.backends.model_tools.importing.comparison import (
    Compared,
    Comparison,
    finish_comparison,
    prepare_comparison,
)
from sluicegate.backends.model_tools.importing.convert import TOKENIZER, convert_source
from sluicegate.backends.model_tools.importing.finishing import is_half_file
from sluicegate.backends.model_tools.importing.leftovers import check_leftovers, files_of
from sluicegate.backends.model_tools.importing.origins import (
    checkpoint_fields,
    module_fields,
    with_sources,
)
from sluicegate.backends.model_tools.importing.report import (
    ImportReport,
    describe_import,
    next_steps,
    show,
)
from sluicegate.backends.model_tools.importing.source import CheckpointFolder, open_source
from sluicegate.backends.model_tools.running import answer, open_model
from sluicegate.backends.model_tools.trials.card import FILE as CARD, read_card
from sluicegate.backends.model_tools.trials.examples import (
    AnsweredExample,
    answer_examples,
    choose_examples,
)
from sluicegate.backends.model_tools.tuning.optimize import make_variant
from sluicegate.backends.model_tools.tuning.options import Echo, VariantOptions
from sluicegate.backends.model_tools.tuning.price import Price, describe_price, measure_price
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.model import Model
from sluicegate.backends.repository.names import NAME
from sluicegate.backends.repository.publishing import publish_revision
from sluicegate.backends.repository.staging import open_staging
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import BackendSettings
from sluicegate.wire.protocol import PARAMETERS, AnswerItem, ChooseItem, EmbedItem, ModelInfo, Task

_STAGING = ".importing-"
# The largest number of special tokens to try. A tokenizer may have thousands.
_MOST_SPECIAL = 16


class TrialOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Says what is tried with an imported model, beside its examples.

    `python` is the interpreter that has the reference library; `None` for the one of this process.
    """

    compares: bool = False
    measures: bool = False
    python: Path | None = None


_NO_TRIAL = TrialOptions()


class _Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the model as a backend describes it, and results that it gave."""

    info: ModelInfo
    examples: list[AnsweredExample]
    compared: Compared | Comparison | None


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
    trial: TrialOptions = _NO_TRIAL,
    dry_run: bool,
    echo: Echo,
) -> ImportReport:
    """Write the next revision of a model, atomically, and print a report.

    Fields in `given` override the fields of the folder's `model.yaml`. `files` has the names of all
    the model's files, if some of them are not in the folder. The files `ignored` are left out.
    `base` is the folder of the base model, if the folder has an adapter. `adapters` are the folders
    of adapters of this model, by the names with which requests choose one.

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
            origin, tried = _convert(source, staging, name, prepares=trial.compares)
            model = read_catalogue(staging).models[name]
            report = ImportReport(
                model=name,
                source=str(folder),
                origin=origin,
                fields=_fields(source, tried.info, model, given),
                left_out=left_out,
                examples=tried.examples,
            )
            for line in describe_import(report):
                echo(line)
            _try_further(report, tried, trial, folder, staging, echo)
            is_right = report.accepted = _is_as_demanded(report.comparison, trial, echo)
            if is_right and variant is not None:
                here = msgspec.structs.replace(settings, models=staging)
                made = make_variant(here, name, variant, dry_run=False, echo=echo)
                report.accepted = made is not None
            if not dry_run and is_right:
                _publish(report, staging, root, echo)
            return report
    except OSError as error:
        raise _file_problem(error, root) from None


def _with_half_precision(source: CheckpointFolder, variant: VariantOptions) -> CheckpointFolder:
    """Return the source with the precision in its fields, if its graph is already in fp16.

    Raises:
        StartProblem: the graph is not in fp16, and there are no texts to judge a variant.
    """
    if source.graph is None or not is_half_file(source.graph):
        variant.golden_file()
    return msgspec.structs.replace(source, fields={**source.fields, "profile": variant.precision})


def _file_problem(error: OSError, root: Path) -> StartProblem:
    """Return the error for a file that cannot be read, or a repository that cannot be written."""
    reason = error.strerror or str(error)
    if error.filename and not Path(error.filename).absolute().is_relative_to(root.absolute()):
        return StartProblem(f"cannot read `{error.filename}`: {reason}")
    return StartProblem(f"cannot write to `{root}`: {reason}")


def _publish(report: ImportReport, staging: Path, root: Path, echo: Echo) -> None:
    """Move all new revisions into the repository, and say how to serve them."""
    name = report.model
    report.written = [
        str(publish_revision(revision, root / name))
        for revision in sorted((staging / name).glob("[0-9]*"))
    ]
    show(echo, "written to", report.written)
    report.next = next_steps(root, name, report.examples)
    show(echo, "next", report.next)


def _try_further(
    report: ImportReport,
    tried: _Tried,
    trial: TrialOptions,
    folder: Path,
    staging: Path,
    echo: Echo,
) -> None:
    """Compare the model with its reference library, and measure it; complete the report."""
    if tried.compared is not None:
        report.comparison = finish_comparison(tried.compared, folder, python=trial.python)
        show(echo, "reference", report.comparison.lines())
    if trial.measures:
        price = report.price = _price(staging, report.model, tried.info)
        show(echo, "price", [price] if isinstance(price, str) else describe_price(price))


def _is_as_demanded(comparison: Comparison | None, trial: TrialOptions, echo: Echo) -> bool:
    """Return whether a model may be published after its comparison; print why it may not."""
    if comparison is None or comparison.is_equal:
        return True
    if comparison.is_equal is None:
        if trial.python is None:
            return True
        reason = "leave out `--reference` to import the model without a comparison"
    elif trial.python is not None:
        reason = "its results differ; without `--reference`, it is imported as it is"
    else:
        reason = f"its results differ; a Python without `{comparison.library}` imports it as it is"
    show(echo, "not written", [reason])
    return False


def _fields(
    source: CheckpointFolder, info: ModelInfo, model: Model, options: Mapping[str, Any]
) -> list[Field]:
    """Return what was read from the checkpoint, and from which field of which file."""
    found = with_sources(source, model_fields(info, model), options)
    tasks = [Task(task) for task in info.tasks]
    return [*checkpoint_fields(source), *found, *module_fields(source, tasks, info.max_tokens)]


def _price(staging: Path, name: str, info: ModelInfo) -> Price | str:
    """Return the price of a model, or why it was not measured."""
    if not info.tasks:
        return "not measured: only other models use it"
    try:
        return measure_price(staging, name)
    except StartProblem as error:
        return f"not measured: {error}"


def _convert(
    source: CheckpointFolder, staging: Path, name: str, *, prepares: bool
) -> tuple[str, _Tried]:
    """Write a revision and run it; return the origin of the graph, and what the runs gave.

    With `prepares`, the runs give results for a comparison with a reference library.
    """
    entry, folder = staging / name / "1", source.folder
    try:
        origin = convert_source(source, entry)
        return origin, asyncio.run(_try(source, staging, name, prepares=prepares))
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


async def _try(source: CheckpointFolder, staging: Path, name: str, *, prepares: bool) -> _Tried:
    """Run each task of the model, and the checkpoint's examples, as a backend would."""
    async with open_model(BackendSettings(models=staging, threads=1), name) as entry:
        texts = _trial_texts(staging / name / "1" / TOKENIZER)
        info = entry.served_model.info
        for task in info.tasks:
            await _try_task(entry, Task(task), texts, name, labels=info.labels)
        card = read_card(source.find(CARD).parent)
        answered = await answer_examples(entry, choose_examples(info, card))
        compared = await prepare_comparison(entry, source, answered) if prepares else None
        return _Tried(info=info, examples=answered, compared=compared)


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
    elif task is Task.ANSWER:
        items = [AnswerItem(question=texts[0], context=text) for text in texts]
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
