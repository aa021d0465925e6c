"""Answers items with one model of a repository in this process, as a backend does."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from sluicegate.backends.app import open_backend
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.wire.protocol import Parameters, Task

_DEADLINE = 600.0


@asynccontextmanager
async def open_model(settings: BackendSettings, name: str) -> AsyncIterator[ModelSetEntry]:
    """Load the repository, and yield the model `name`.

    Raises:
        StartProblem: the model does not exist or is broken.
    """
    settings = msgspec.structs.replace(settings, model_memory_bytes=0)
    opener = executor_opener(settings)
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opener) as repository:
        models = repository.core.model_set
        entry = models.find(name)
        if entry is None:
            raise StartProblem(f"`{name}` cannot be served: {models.problems.get(name, 'unknown')}")
        yield entry


async def answer(
    entry: ModelSetEntry,
    task: Task,
    item: Any,
    parameters: Parameters,
    *,
    scope: str = "model-tools",
) -> Any:
    """Return the result of an item, or `None` if the model answers the task without a graph.

    Equal rows in flight are computed once if they have the same `scope`.

    Raises:
        BackendError: the model refuses the item, or fails.
    """
    algorithm = entry.served_model.algorithms.get(task)
    if algorithm is None:
        return None  # the task only tokenizes
    return await algorithm.run(item, parameters, context_of(entry, scope=scope))


def context_of(entry: ModelSetEntry, *, scope: str = "model-tools") -> AlgorithmContext:
    """Return the context in which an algorithm answers one item."""
    caller = RowCaller(scope=scope, deadline=time.monotonic() + _DEADLINE)
    return AlgorithmContext(entry.model_set.pipelines, caller)
