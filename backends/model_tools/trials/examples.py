"""Chooses the examples on which an imported model is shown, and computes their results.

They come from the checkpoint's card. A model whose card has none is shown on sentences of our own.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from sluicegate.backends.errors import BackendError
from sluicegate.backends.model_tools.running import answer
from sluicegate.backends.model_tools.trials.card import CardInput
from sluicegate.backends.pipelines.ask import encode_result
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.wire.protocol import (
    PARAMETERS,
    AnswerItem,
    ChooseItem,
    EmbedItem,
    ModelInfo,
    Task,
)

_OWN = "our own input: README.md has no example"
_MOST_EXAMPLES, _MOST_ITEMS, _MOST_CHARACTERS = 3, 8, 2000
_MOST_LABELS = 16
_TEXTS = ["The film is a joy to watch.", "My card has not arrived yet."]
_PAIR = ("A man sleeps on a bench.", "Somebody is resting.")
_ENTITIES = "Angela Merkel visited the museum in Paris on Monday."
_LABELS = ["person", "place"]
_QUERY = "How do I reset my card PIN?"
_DOCUMENTS = ["Change your PIN at any cash machine.", "We are hiring.", "Cards expire in May."]
_QUESTION = AnswerItem(question="Who scored?", context="The striker scored twice on Sunday.")
_CHOICE = ChooseItem(prompt="I cannot log in.", choices=["billing", "account access"])


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the items of a request, its parameters by name, and where they come from."""

    task: Task
    items: list[Any]
    parameters: dict[str, Any] = {}
    source: str


class AnsweredExample(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an example and a result for each item, as the API answers it.

    The result of an item that the model refuses is `{"error": reason}`.
    """

    example: Example
    results: list[Any]


def choose_examples(info: ModelInfo, card: Sequence[CardInput]) -> list[Example]:
    """Return examples for the model's tasks: of its card or, if the card has none, our own one."""
    if not info.tasks:
        return []  # only other models use it
    output = info.outputs[0] if info.outputs else "dense"
    # A cross-encoder labels pairs, too, but it was trained to rank.
    left_out = Task.CLASSIFY if Task.RERANK in info.tasks else None
    found = [
        example
        for task in info.tasks
        if task is not left_out
        for example in _of_card(task, info, card)
    ]
    found = found or [_own_example(info)]
    if output == "dense":
        return found
    return [
        msgspec.structs.replace(
            each, items=[EmbedItem(input=item, output=output) for item in each.items]
        )
        if each.task is Task.EMBED
        else each
        for each in found
    ]


async def answer_examples(
    entry: ModelSetEntry, examples: Sequence[Example]
) -> list[AnsweredExample]:
    """Return the examples with the results of a loaded model."""
    return [
        AnsweredExample(
            example=example, results=[await _result(entry, example, item) for item in example.items]
        )
        for example in examples
    ]


async def _result(entry: ModelSetEntry, example: Example, item: Any) -> Any:
    parameters = PARAMETERS[example.task](**example.parameters)
    try:
        found = await answer(entry, example.task, item, parameters)
    except BackendError as error:
        return {"error": str(error)}
    return msgspec.json.decode(encode_result(found))


def _of_card(task: Task, info: ModelInfo, card: Sequence[CardInput]) -> list[Example]:
    """Return the first different examples of a card for a task."""
    found: list[Example] = []
    for example in _all_of_card(task, info, card):
        request = (example.items, example.parameters)
        if all(request != (other.items, other.parameters) for other in found):
            found.append(example)
    return found[:_MOST_EXAMPLES]


def _all_of_card(task: Task, info: ModelInfo, card: Sequence[CardInput]) -> Iterator[Example]:
    for given in card:
        # Entities of any type have the types of the example.
        labels = [] if info.labels else given.labels or _LABELS
        for items, parameters in _requests(task, given, labels):
            short = [item for item in items if _size(item) <= _MOST_CHARACTERS][:_MOST_ITEMS]
            if short:
                yield Example(task=task, items=short, parameters=parameters, source=given.source)


def _requests(
    task: Task, given: CardInput, labels: list[str]
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the items and the parameters of each request that an example of a card makes."""
    if task is Task.RERANK:
        if given.queries and given.documents:
            yield given.documents, {"query": given.queries[0]}
        for query, pairs in groupby(given.pairs, key=lambda pair: pair[0]):
            yield [document for _, document in pairs], {"query": query}
        return
    named = given.labels[:_MOST_LABELS]
    items: dict[Task, list[Any]] = {
        Task.CLASSIFY: [*given.texts, *given.pairs],
        Task.ZERO_SHOT: given.texts if named else [],
        Task.ENTITIES: given.texts,
        Task.EMBED: given.texts,
        Task.ANSWER: _questions(given),
    }
    parameters: dict[Task, dict[str, Any]] = {
        Task.ZERO_SHOT: {"labels": named},
        Task.ENTITIES: {"labels": labels[:_MOST_LABELS]} if labels else {},
    }
    if items.get(task):
        yield items[task], parameters.get(task, {})


def _questions(given: CardInput) -> list[AnswerItem]:
    if not (given.question and given.context):
        return []
    return [AnswerItem(question=given.question, context=given.context)]


def _own_example(info: ModelInfo) -> Example:
    task = Task(info.tasks[0])
    reads_pairs = Task.ZERO_SHOT in info.tasks
    items: dict[Task, list[Any]] = {
        Task.CLASSIFY: [_PAIR] if reads_pairs else _TEXTS,
        Task.EMBED: _TEXTS,
        Task.RERANK: _DOCUMENTS,
        Task.ENTITIES: [_ENTITIES],
        Task.ANSWER: [_QUESTION],
        Task.CHOOSE: [_CHOICE],
    }
    parameters: dict[Task, dict[str, Any]] = {
        Task.RERANK: {"query": _QUERY},
        Task.ENTITIES: {} if info.labels else {"labels": _LABELS},
    }
    if Task.RERANK in info.tasks and task is Task.CLASSIFY:
        task = Task.RERANK  # a cross-encoder reads pairs
    return Example(task=task, items=items[task], parameters=parameters.get(task, {}), source=_OWN)


def _size(item: Any) -> int:
    return len(item) if isinstance(item, str) else sum(map(len, _parts(item)))


def _parts(item: Any) -> tuple[str, ...]:
    return (item.question, item.context) if isinstance(item, AnswerItem) else tuple(item)
