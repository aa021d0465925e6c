"""Finds a message's mood, its topics, and the intent of a complaint, with three models."""

from collections.abc import Sequence
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithm,
    Algorithms,
    ModelAlgorithms,
    Recipe,
    all_of,
)
from sluicegate.backends.algorithms.labels import Label, Labeller
from sluicegate.backends.algorithms.questions import ZeroShotTask
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.wire.protocol import InferParameters, Task, ZeroShotParameters

DEFAULT_TOPICS = ("payments", "cards", "account", "delivery", "service", "product", "price")
_COMPLAINT = "negative"
_THRESHOLD = 0.7
_SHOWN = 3


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    topics: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT_TOPICS))


class Reviewer(Algorithm):
    """Finds the mood and topics of a message, and the intent of a complaint.

    1. The backend finds mood and topics concurrently, from one vector of the message.
    2. A message is a complaint if its mood is `negative` with a score of at least `threshold`.
       Only then does the backend find the intent, from the cached vector.
    """

    def __init__(self, *, mood: Labeller, topics: ZeroShotTask, intent: Labeller) -> None:
        self._mood = mood
        self._topics = topics
        self._intent = intent
        self.version = 1 + mood.version + topics.version + intent.version

    @override
    async def run(self, item: Any, parameters: InferParameters, ask: AlgorithmContext) -> Any:
        message = _read_message(item)
        threshold = _read_threshold(parameters.parameters)
        topics_asked = ZeroShotParameters(labels=message.topics)
        (mood,), topics = await all_of(
            [
                self._mood.rank(message.text, ask, top=1),
                self._topics.rank(message.text, topics_asked, ask),
            ]
        )
        complaint = mood.label == _COMPLAINT and mood.score >= threshold
        intent: Label | None = None
        if complaint:
            (intent,) = await self._intent.rank(message.text, ask, top=1)
        return {
            "sentiment": mood.as_json(),
            "topics": [topic.as_json() for topic in topics[:_SHOWN]],
            "intent": intent.as_json() if intent else None,
            "needs_attention": complaint,
        }


def _read_message(item: Any) -> _Message:
    try:
        return _Message(item) if isinstance(item, str) else msgspec.convert(item, _Message)
    except msgspec.ValidationError as error:
        detail = f"an item must be a text or {{text, topics}}: {error}"
        raise ItemRefused("bad_item", detail) from None


def _read_threshold(parameters: dict[str, Any]) -> float:
    for name in parameters:
        if name != "threshold":
            detail = f"parameter `{name}` is unknown; the only parameter is `threshold`"
            raise ItemRefused("unknown_parameter", detail)
    threshold = parameters.get("threshold", _THRESHOLD)
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not (is_number and 0 <= threshold <= 1):
        raise ItemRefused("bad_parameter", "`threshold` must be a number between 0 and 1")
    return float(threshold)


class ReviewerRecipe(Recipe, frozen=True):
    """Builds a reviewer over three models."""

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        match [algorithm for each in below for algorithm in each.algorithms.values()]:
            case [Labeller() as mood, ZeroShotTask() as topics, *_, Labeller() as intent]:
                return {Task.INFER: Reviewer(mood=mood, topics=topics, intent=intent)}
            case _:
                raise ValueError(
                    "needs `uses` of a model for the mood, one for topics (zero-shot) and one for "
                    "intents, in this order"
                )
