"""Computes results with a model of a repository, for a comparison."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sluicegate.backends.algorithms.base import all_of
from sluicegate.backends.errors import BackendError, StartProblem
from sluicegate.backends.model_tools.comparing.results import Entity, Results
from sluicegate.backends.model_tools.running import answer, open_model
from sluicegate.backends.pipelines.ask import encode_result
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import (
    ClassifyParameters,
    EmbedParameters,
    EntitiesParameters,
    Parameters,
    RerankParameters,
    Task,
)

_AT_ONCE = 32


def served_results(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Results:
    """Run one task of a model of a repository on texts, and return the results.

    Raises:
        StartProblem: the model does not exist, is broken, or refuses a text.
    """
    return asyncio.run(_run_all(settings, name, texts, task))


async def _run_all(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Results:
    async with open_model(settings, name) as entry:
        return await results_of(entry, task, texts)


async def results_of(
    entry: ModelSetEntry, task: Task, texts: Sequence[Text], labels: Sequence[str] = ()
) -> Results:
    """Run one task of a loaded model on texts, and return the results.

    `labels` are the types of entities to find, for a model that finds any type.

    Raises:
        StartProblem: the model refuses a text.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run(number: int, text: Text) -> Any:
        async with slots:
            try:
                found = await answer(entry, task, *_request(task, text, labels))
            except BackendError as error:
                raise StartProblem(f"text {number + 1}: {error}") from None
            return msgspec.json.decode(encode_result(found))

    return _collect(task, await all_of(run(*pair) for pair in enumerate(texts)))


def _request(task: Task, text: Text, labels: Sequence[str]) -> tuple[Any, Parameters]:
    """Return the item and the parameters with which a task reads a text."""
    if not isinstance(text, str) and task is Task.RERANK:
        return text[1], RerankParameters(query=text[0])
    if task is Task.ENTITIES:
        named = list(labels) or msgspec.UNSET
        return text, EntitiesParameters(aggregation="simple", labels=named)
    return text, ClassifyParameters() if task is Task.CLASSIFY else EmbedParameters()


def _collect(task: Task, results: list[Any]) -> Results:
    if task is Task.EMBED:
        return Results(vectors=np.array([a["embedding"] for a in results], dtype=np.float32))
    if task is Task.RERANK:
        return Results(scores=[{"score": result["score"]} for result in results])
    if task is Task.CLASSIFY:
        lines = [result["labels"] for result in results]
        return Results(scores=[{e["label"]: e["score"] for e in line} for line in lines])
    found = [
        [{field: entity[field] for field in ("label", "start", "end", "score")} for entity in line]
        for line in (result["entities"] for result in results)
    ]
    return Results(entities=msgspec.convert(found, list[list[Entity]]))
