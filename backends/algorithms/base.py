"""Defines algorithms: coroutines from an item to a JSON value that ask models on the way."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from typing_extensions import override

from backends.pipelines.ask import AlgorithmContext
from backends.protocol import ModelInfo, Task
from backends.types import FloatArray, RowInput


class Algorithm(Protocol):
    """Answers items of one task.

    `run` returns a JSON value (arrays of floats are one) and raises `ItemRefused` for an item or
    parameters that are wrong, or lets `BackendError` of the models it asks pass. Every `await ask`
    joins the batches of all other callers. A changed answer to the same item needs a new `version`.
    """

    version: int = 1
    """The version of the code, plus those of the algorithms that it asks; part of cache keys."""

    @property
    def as_query(self) -> "QueryAlgorithm | None":
        """This algorithm if it is a `QueryAlgorithm`, else `None`."""
        return None

    # Items and parameters are what `protocol.ITEMS` and `protocol.PARAMETERS` say for the task.
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        """Return the answer of one item."""
        ...


class QueryAlgorithm(Algorithm):
    """Answers an item by one query of `model`: the vectors of some texts.

    The items of a call are then answered without a coroutine for each. `prompts` go before the
    texts, in place of the model's own.
    """

    model: str
    prompts: Sequence[str] | None = None

    @property
    @override
    def as_query(self) -> "QueryAlgorithm":
        return self

    @abstractmethod
    def texts(self, item: Any, parameters: Any) -> Sequence[RowInput]:
        """Return the texts whose vectors answer an item, or raise `ItemRefused`."""

    @abstractmethod
    def answer(self, vectors: FloatArray, parameters: Any) -> Any:
        """Return the answer that is made of the vectors, one line per text."""

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        vectors = await ask(self.model, self.texts(item, parameters), self.prompts)
        return self.answer(vectors, parameters)


class ModelAlgorithms(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that is served: its info, its encoder, and an algorithm for each task.

    `tokens` has the algorithms of the tasks that run no model, such as `tokenize`.
    """

    info: ModelInfo
    encoder: str
    algorithms: dict[Task, Algorithm]
    tokens: dict[Task, Algorithm]

    def find(self, task: Task) -> Algorithm | None:
        """Return the algorithm that answers a task, `None` if there is none."""
        return self.algorithms.get(task) or self.tokens.get(task)


async def all_of(questions: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run questions at once; when one fails, the others are cancelled and the error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except BaseExceptionGroup as error:
        # All may fail for the same text; one error is enough.
        raise error.exceptions[0] from None
    return [task.result() for task in tasks]
