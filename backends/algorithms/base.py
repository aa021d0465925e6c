"""Defines algorithms: coroutines from an item to a JSON value that ask models on the way."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

import msgspec

from backends.pipelines.ask import AlgorithmContext
from backends.protocol import ModelInfo, Task


class Algorithm(Protocol):
    """Answers items of one task.

    `run` returns a JSON value (arrays of floats are one) and raises `ItemRefused` for an item or
    parameters that are wrong, or lets `BackendError` of the models it asks pass. Every `await ask`
    joins the batches of all other callers. A changed answer to the same item needs a new `version`.
    """

    version: int = 1
    """The version of the code, plus those of the algorithms that it asks; part of cache keys."""

    # Items and parameters are what `protocol.ITEMS` and `protocol.PARAMETERS` say for the task.
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        """Return the answer of one item."""
        ...


class ModelAlgorithms(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that is served: its info, its encoder, and an algorithm for each task."""

    info: ModelInfo
    encoder: str
    algorithms: dict[Task, Algorithm]


async def all_of(questions: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run questions at once; when one fails, the others are cancelled and the error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except BaseExceptionGroup as error:
        # All may fail for the same text; one error is enough.
        raise error.exceptions[0] from None
    return [task.result() for task in tasks]
