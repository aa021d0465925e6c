"""Estimates the work of items from their size and parameters, corrected by earlier items."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from sluicegate.wire.protocol import (
    TASKS,
    UNREADABLE,
    AnswerItem,
    AnswerParameters,
    Call,
    EntitiesParameters,
    ModelInfo,
    Task,
    ZeroShotParameters,
    most_entity_windows,
    most_windows,
)

# Bytes per token. Most texts have fewer bytes per token. So estimates are low, and no item that
# would be in time is refused.
_TOKEN_BYTES = 6
_WINDOWS = "long-document"
_STEP = 0.1
# Bounds of the ratio, so that a single item cannot distort it.
_LEAST, _MOST = 0.05, 1000.0
# The maximum number of remembered kinds, and the maximum length of their parameters.
_MOST_KINDS, _LONGEST_PARAMETERS = 1024, 4096

Kind = tuple[str, Task, bytes]


class WorkEstimates:
    """Learns the ratio of the actual work of items to the work predicted from their bytes.

    There is a ratio for each combination of model, task and parameters. New parameters begin with
    the ratio of their model and task. A ratio covers what the prediction does not know, such as
    cached rows, and writing systems with more tokens per byte.
    """

    def __init__(self) -> None:
        self._ratios: OrderedDict[Kind, float] = OrderedDict()

    def ratio(self, kinds: Sequence[Kind]) -> float:
        """Return the ratio of the first of `kinds` that has one; 1 if none of them has one."""
        for kind in kinds:
            found = self._ratios.get(kind)
            if found is not None:
                self._ratios.move_to_end(kind)
                return found
        return 1.0

    def learn(
        self, kinds: Sequence[Kind], *, predicted: float, brought: float, is_done: bool
    ) -> None:
        """Learn from the actual work of an item. For a failed item, this work is a lower bound."""
        if predicted <= 0.0:
            return
        measured = min(_MOST, max(_LEAST, brought / predicted))
        for kind in kinds:
            ratio = self._ratios.get(kind)
            if not is_done and measured <= (1.0 if ratio is None else ratio):
                continue
            self._ratios[kind] = measured if ratio is None else ratio + _STEP * (measured - ratio)
            self._ratios.move_to_end(kind)
        while len(self._ratios) > _MOST_KINDS:
            self._ratios.popitem(last=False)


def predict_work(call: Call, info: ModelInfo, row_work: Callable[[int], float]) -> list[float]:
    """Return the predicted seconds of work of each item of a call.

    `row_work` returns the seconds of a row from its number of tokens. A call's labels, overlap and
    length of rows count, so that no call teaches a wrong ratio to calls that lack its parameters.
    """
    try:
        predict = _PREDICTIONS.get(call.task, _predict_texts)
        rows = predict(call, info)
    except UNREADABLE:
        rows = _predict_texts(call, info)  # the call will be refused
    return [number * row_work(max(1, min(tokens, info.max_tokens))) for number, tokens in rows]


_Rows = list[tuple[float, int]]
"""For each item, its rows and the tokens of each row."""


def _predict_texts(call: Call, info: ModelInfo) -> _Rows:
    is_bounded = not TASKS[call.task].has_windows and info.algorithm != _WINDOWS
    return [
        (1.0 if is_bounded else max(1.0, tokens / info.max_tokens), tokens)
        for tokens in (len(item.body) // _TOKEN_BYTES + 1 for item in call.items)
    ]


def _predict_labels(call: Call, info: ModelInfo) -> _Rows:
    """Each label has a row, unless the model reads all labels at once."""
    labels = _zero_shot.decode(call.parameters).labels
    texts = _predict_texts(call, info)
    if info.max_words:
        taken = _label_tokens(labels)
        return [(rows, tokens + taken) for rows, tokens in texts]
    return [(max(1, len(labels)) * rows, tokens) for rows, tokens in texts]


def _predict_entities(call: Call, info: ModelInfo) -> _Rows:
    parameters = _entities.decode(call.parameters)
    given = [each for each in (parameters.labels, parameters.relations) if each is not UNSET]
    # Entities and relations have rows of their own.
    taken = sum(map(_label_tokens, given)) // max(1, len(given))
    if parameters.descriptions is not UNSET:
        taken += _label_tokens([*parameters.descriptions.values()])
    return [
        (
            float(most_entity_windows(text, parameters, info.row_limits, token_bytes=_TOKEN_BYTES)),
            len(text.encode()) // _TOKEN_BYTES + 1 + taken,
        )
        for text in (_text.decode(item.body) for item in call.items)
    ]


def _predict_answers(call: Call, info: ModelInfo) -> _Rows:
    parameters = _answers.decode(call.parameters)
    longest, _ = parameters.row(info.max_tokens)
    found: _Rows = []
    for item in call.items:
        asked = _asked.decode(item.body)
        windows = most_windows(asked, parameters, info.row_limits, token_bytes=_TOKEN_BYTES)
        found.append((float(windows), min(longest, len(item.body) // _TOKEN_BYTES + 1)))
    return found


def _label_tokens(labels: Sequence[str]) -> int:
    return sum([len(label.encode()) // _TOKEN_BYTES + 2 for label in labels])


_PREDICTIONS: dict[Task, Callable[[Call, ModelInfo], _Rows]] = {
    Task.ZERO_SHOT: _predict_labels,
    Task.ENTITIES: _predict_entities,
    Task.ANSWER: _predict_answers,
}
_zero_shot = msgspec.msgpack.Decoder(ZeroShotParameters)
_entities = msgspec.msgpack.Decoder(EntitiesParameters)
_answers = msgspec.msgpack.Decoder(AnswerParameters)
_text = msgspec.msgpack.Decoder(str)
_asked = msgspec.msgpack.Decoder(AnswerItem)


def kinds_of(call: Call) -> list[Kind]:
    """Return the kinds to which the items of a call belong, the most specific kind first.

    A kind is a combination of model, task and parameters. The broader kind has no parameters.
    """
    broad = (call.model, call.task, b"")
    if not call.parameters or len(call.parameters) > _LONGEST_PARAMETERS:
        return [broad]
    return [(call.model, call.task, call.parameters), broad]
