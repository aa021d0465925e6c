"""Compares an imported model with its reference library, if that is installed.

Without the library, an import succeeds, and its report says why results were not compared, and how
to compare them. `--reference` demands the comparison. Different results are never published.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.comparing.answers import results_of
from sluicegate.backends.model_tools.comparing.asking import (
    LIBRARIES,
    reference_results,
)
from sluicegate.backends.model_tools.comparing.results import (
    Results,
    compare_results,
)
from sluicegate.backends.model_tools.importing.gliner2 import Gliner2Config
from sluicegate.backends.model_tools.importing.origins import weight_types
from sluicegate.backends.model_tools.importing.source import CheckpointFolder
from sluicegate.backends.model_tools.trials.examples import AnsweredExample
from sluicegate.backends.qualification.golden_texts import default_texts
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import Task

_MORE_TEXTS, _MOST_WORDS = 8, 12
# Importing torch and loading a large checkpoint takes minutes on a slow disk.
_DEADLINE = 300.0
_TOLERANCE = 1e-3
# The tensor by which a table of model2vec differs from one of sentence-transformers.
_TABLE = "embeddings"


class Compared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the results of a model for a comparison, and what the library is asked for."""

    task: Task
    library: str
    items: list[Text]
    labels: list[str] = []
    results: Results


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Says how results differ from the library's.

    If the results cannot be compared, `is_equal` is `None`. If they cannot be compared number by
    number, because their labels differ for example, it is false. In both cases, `reason` says why.
    """

    library: str | None = None
    is_equal: bool | None = None
    largest_difference: float | None = None
    least_cosine: float | None = None
    items: int = 0
    different_items: list[int] = []
    reason: str | None = None

    def lines(self) -> list[str]:
        """Return the lines that show the comparison."""
        if self.is_equal is None:
            return [f"not compared: {self.reason}"]
        if self.reason is not None:
            return [f"DIFFERS from {self.library}: {self.reason}"]
        cosine = "" if self.least_cosine is None else f", least cosine {self.least_cosine:.7f}"
        verdict = "equal to" if self.is_equal else "DIFFERS from"
        numbers = ", ".join(str(number + 1) for number in self.different_items)
        which = f"; different results for the inputs {numbers}" if numbers else ""
        largest = f"largest difference {self.largest_difference:.2g}{cosine}{which}"
        return [f"{verdict} {self.library} on {self.items} inputs: {largest}"]


async def prepare_comparison(
    entry: ModelSetEntry, source: CheckpointFolder, answered: Sequence[AnsweredExample]
) -> Compared | Comparison:
    """Return the results of a loaded model, or why they cannot be compared."""
    info = entry.served_model.info
    task = next((task for task in LIBRARIES if task in info.tasks), None)
    if task is None:
        tasks = ", ".join(info.tasks) or "no task"
        return Comparison(reason=f"there is no comparison for {tasks}; check a few results by hand")
    if (reason := _obstacle(source, task)) is not None:
        return Comparison(reason=reason)
    items = _items(task, answered)
    labels = [] if info.labels or task is not Task.ENTITIES else _labels(answered)
    try:
        results = await results_of(entry, task, items, labels)
    except StartProblem as error:
        return Comparison(reason=str(error))
    library = _library(source, task)
    return Compared(task=task, library=library, items=items, labels=labels, results=results)


def finish_comparison(
    found: Compared | Comparison, folder: Path, *, python: Path | None
) -> Comparison:
    """Ask the library for the same results, and return how they differ."""
    if isinstance(found, Comparison):
        return found
    try:
        expected = reference_results(
            folder,
            found.task,
            found.items,
            library=found.library,
            labels=found.labels,
            python=python,
            deadline=_DEADLINE,
        )
        difference = compare_results(found.results, expected, tolerance=_TOLERANCE)
    except StartProblem as error:
        return Comparison(library=found.library, reason=str(error))
    except ValueError as error:
        return Comparison(library=found.library, is_equal=False, reason=str(error))
    return Comparison(
        library=found.library,
        is_equal=difference.is_within(_TOLERANCE),
        largest_difference=difference.largest,
        least_cosine=difference.cosine,
        items=difference.count,
        different_items=difference.changed,
    )


def _obstacle(source: CheckpointFolder, task: Task) -> str | None:
    """Return why no library can be asked about a checkpoint, if that is so."""
    modules, ranking = source.modules, source.ranking
    obstacles = {
        "the checkpoint is an adapter; compare the merged model": (
            source.adapter is not None or source.task_adapter is not None
        ),
        "the package `setfit` reads the head from a pickle, which is never read": (
            source.head is not None
        ),
        "there is no comparison for GLiNER2; check a few results by hand": (
            isinstance(source.gliner, Gliner2Config)
        ),
        "the labels are your own, and not those of the checkpoint": (
            "labels" in source.fields and task in (Task.CLASSIFY, Task.ENTITIES)
        ),
        "the checkpoint has code of its own, which is never run": (
            bool(source.config.get("auto_map"))
        ),
        "there is no comparison of sparse vectors and token vectors": (
            modules is not None and not modules.is_pooled
        ),
        "the library needs a `modules.json` to rank with this checkpoint": (
            ranking is not None and bool(ranking.words) and modules is None
        ),
        "the folder has no safetensors, and pickles are never read": (
            not any(source.folder.glob("**/*.safetensors"))
        ),
    }
    return next((reason for reason, applies in obstacles.items() if applies), None)


def _library(source: CheckpointFolder, task: Task) -> str:
    if source.gliner is not None:
        return "gliner"
    is_table = source.table is not None and _TABLE in weight_types(source.folder)
    return "model2vec" if is_table else LIBRARIES[task]


def _items(task: Task, answered: Sequence[AnsweredExample]) -> list[Text]:
    """Return the inputs of examples that the model did not refuse, and a few usual sentences."""
    found = [
        (each.example, item)
        for each in answered
        if each.example.task is task
        for item, result in zip(each.example.items, each.results, strict=True)
        if "error" not in result
    ]
    more = [text for text in default_texts() if len(text.split()) <= _MOST_WORDS][:_MORE_TEXTS]
    if task is Task.RERANK:
        pairs = [(example.parameters["query"], text) for example, text in found]
        return [*pairs, *((more[0], text) for text in more[1:])]
    return list(dict.fromkeys([*(item for _, item in found), *more]))


def _labels(answered: Sequence[AnsweredExample]) -> list[str]:
    return next((each.example.parameters["labels"] for each in answered), [])
