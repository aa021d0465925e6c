"""Computes results with a model of a repository, as a backend does."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from backends.algorithms.base import Algorithm, all_of
from backends.app import open_backend
from backends.batching.coalescing import RowCaller
from backends.errors import BackendError, StartProblem
from backends.executors.opening import executor_opener
from backends.model_tools.comparing.results import Entity, Results
from backends.pipelines.ask import AlgorithmContext, encode_result
from backends.serving.core import ModelSetEntry
from backends.settings import BackendSettings
from backends.telemetry.spans import NO_TRACING
from backends.types import Text
from wire.protocol import (
    ClassifyParameters,
    EmbedParameters,
    EntitiesParameters,
    RerankParameters,
    Task,
)

_AT_ONCE = 32
_DEADLINE = 600.0


def served_results(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Results:
    """Run one task of a model on texts, and return the results.

    Raises:
        StartProblem: the model does not exist, is broken, or refuses a text.
    """
    return asyncio.run(_run_all(settings, name, texts, task))


async def _run_all(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Results:
    opener = executor_opener(settings)
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opener) as repository:
        models = repository.core.model_set
        entry = models.find(name)
        if entry is None:
            raise StartProblem(f"`{name}` cannot be served: {models.problems.get(name, 'unknown')}")
        algorithm = entry.served_model.algorithms[task]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def run(number: int, text: Text) -> Any:
            async with slots:
                try:
                    return await _run(algorithm, entry, task, text)
                except BackendError as error:
                    raise StartProblem(f"text {number + 1}: {error}") from None

        return _collect(task, await all_of(run(*pair) for pair in enumerate(texts)))


async def _run(algorithm: Algorithm, entry: ModelSetEntry, task: Task, text: Text) -> Any:
    caller = RowCaller(scope="compare", deadline=time.monotonic() + _DEADLINE)
    ask = AlgorithmContext(entry.model_set.pipelines, caller)
    item: Any = text
    if not isinstance(text, str) and task is Task.RERANK:
        query, item = text
        parameters: Any = RerankParameters(query=query)
    elif task is Task.ENTITIES:
        parameters = EntitiesParameters(aggregation="simple")
    else:
        parameters = ClassifyParameters() if task is Task.CLASSIFY else EmbedParameters()
    return msgspec.json.decode(encode_result(await algorithm.run(item, parameters, ask)))


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
