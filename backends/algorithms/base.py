"""Defines algorithms: coroutines that call models and turn an item into a JSON value."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from typing_extensions import override

from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.types import FloatArray, Prompt, RowInput
from sluicegate.wire.protocol import ModelInfo, Task

Kind = TypeVar("Kind", bound="Algorithm")


class Algorithm(Protocol):
    """Answers items of one task; an item is one input of a request.

    `run` returns a JSON value, which may contain arrays of floats. It raises `ItemRefused` for an
    invalid item or invalid parameters, and passes on any `BackendError` of a model. When `run`
    calls `ask`, its texts share batches with texts of other callers. Increase `version` when a
    change of the code changes the result of any item.
    """

    version: int = 1
    """The version of this code plus the versions of the algorithms it uses. Part of cache keys."""

    @property
    def as_query(self) -> "QueryAlgorithm | None":
        """The algorithm itself if it is a `QueryAlgorithm`, else `None`."""
        return None

    # `protocol.ITEMS` and `protocol.PARAMETERS` give the types of `item` and `parameters` by task.
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        """Return the result of one item."""
        ...


class QueryAlgorithm(Algorithm):
    """Answers an item from the vectors that `model` returns in a single query.

    The backend answers all items of a call together, without a coroutine for each item.
    """

    model: str

    @property
    @override
    def as_query(self) -> "QueryAlgorithm":
        return self

    @abstractmethod
    def texts(self, item: Any, parameters: Any) -> Sequence[RowInput]:
        """Return the texts whose vectors answer an item, or raise `ItemRefused`."""

    def prompts(self, parameters: Any) -> Sequence[Prompt] | None:
        """Return one prompt for each text; `None` means the model's own prompt.

        Raises:
            ItemRefused: the parameters name a prompt that the model does not have.
        """
        return None

    @abstractmethod
    def answer(self, vectors: FloatArray, parameters: Any) -> Any:
        """Compute the result of an item from its vectors, an array of shape (texts, values)."""

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        prompts = self.prompts(parameters)
        vectors = await ask(self.model, self.texts(item, parameters), prompts)
        return self.answer(vectors, parameters)


class WindowedAlgorithm(Algorithm):
    """Scores an item whose text `model` can also read in windows."""

    model: str

    @abstractmethod
    async def window_scores(
        self, item: Any, parameters: Any, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        """Return the same kind of scores as `run`, one row per window of the text."""


Algorithms = dict[Task, Algorithm]


class ModelAlgorithms(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a served model: its `ModelInfo`, its encoder, and an algorithm for each task.

    `tokens` has the algorithms of tasks that only need the tokenizer, such as `tokenize`.
    """

    info: ModelInfo
    encoder: str
    algorithms: Algorithms
    tokens: Algorithms

    def find(self, task: Task) -> Algorithm | None:
        """Return the algorithm for a task, or `None`."""
        return self.algorithms.get(task) or self.tokens.get(task)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Builds an algorithm that a `model.yaml` names; its fields are the `options` there."""

    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        """Return an algorithm for each task that the models `below` suffice for.

        Raises:
            ValueError: the algorithm cannot be built. The message continues a sentence that begins
                with the algorithm's name.
        """
        raise NotImplementedError


def find_algorithm(below: Sequence[ModelAlgorithms], kind: type[Kind]) -> Kind | None:
    """Return an algorithm of type `kind` from the model below.

    Return `None` if the model has no such algorithm, or if there is not exactly one model below.
    """
    if len(below) != 1:
        return None
    found = (algorithm for algorithm in below[0].algorithms.values() if isinstance(algorithm, kind))
    return next(found, None)


def only_algorithm(below: Sequence[ModelAlgorithms], kind: type[Kind], what: str) -> Kind:
    """Return an algorithm as `find_algorithm` does, or raise `ValueError`; `what` describes it."""
    found = find_algorithm(below, kind)
    if found is None:
        raise ValueError(f"needs `uses` of one model: {what}")
    return found


async def all_of(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines concurrently. If one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as error:
        # Several coroutines may fail for the same reason, so one error is enough.
        raise error.exceptions[0] from None
    return [task.result() for task in tasks]
