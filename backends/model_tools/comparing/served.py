"""Computes results with a model of a repository, as a backend does."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from backends.algorithms.base import Algorithm, all_of
from backends.app import open_backend
from backends.batching.shared import RowCaller
from backends.errors import BackendError, StartProblem
from backends.executors.opening import executor_opener
from backends.model_tools.comparing.answers import Answers, Entity
from backends.pipelines.ask import AlgorithmContext, encode_result
from backends.protocol import (
    ClassifyParameters,
    EmbedParameters,
    EntitiesParameters,
    RerankParameters,
    Task,
)
from backends.serving.core import ModelSetEntry
from backends.settings import BackendSettings
from backends.telemetry.spans import NO_TRACING
from backends.types import Text

_AT_ONCE = 32
_DEADLINE = 600.0


def served_answers(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Answers:
    """Return a model's results for texts, by one of its tasks.

    Raises:
        StartProblem: the model does not exist, is broken, or refuses a text.
    """
    return asyncio.run(_answer(settings, name, texts, task))


async def _answer(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Answers:
    opener = executor_opener(settings)
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opener) as repository:
        models = repository.core.model_set
        entry = models.find(name)
        if entry is None:
            raise StartProblem(f"`{name}` cannot be served: {models.problems.get(name, 'unknown')}")
        algorithm = entry.served_model.algorithms[task]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(number: int, text: Text) -> Any:
            async with slots:
                try:
                    return await _ask(algorithm, entry, task, text)
                except BackendError as error:
                    raise StartProblem(f"text {number + 1}: {error}") from None

        return _collect(task, await all_of(ask(*pair) for pair in enumerate(texts)))


async def _ask(algorithm: Algorithm, entry: ModelSetEntry, task: Task, text: Text) -> Any:
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


def _collect(task: Task, answers: list[Any]) -> Answers:
    if task is Task.EMBED:
        return Answers(vectors=np.array([a["embedding"] for a in answers], dtype=np.float32))
    if task is Task.RERANK:
        return Answers(scores=[{"score": answer["score"]} for answer in answers])
    if task is Task.CLASSIFY:
        lines = [answer["labels"] for answer in answers]
        return Answers(scores=[{e["label"]: e["score"] for e in line} for line in lines])
    found = [
        [{field: entity[field] for field in ("label", "start", "end", "score")} for entity in line]
        for line in (answer["entities"] for answer in answers)
    ]
    return Answers(entities=msgspec.convert(found, list[list[Entity]]))
