"""Estimates the work of items by their bytes, corrected by the work that others brought."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from backends.protocol import UNREADABLE, Call, ModelInfo, Task, ZeroShotParameters

# Bytes per token, more than most texts have: a low estimate refuses nothing that would be in time.
_TOKEN_BYTES = 6
# Items of these tasks bring more rows the longer they are; others are truncated, or refused.
_UNBOUNDED = frozenset({Task.INFER, Task.CHOOSE, Task.ENTITIES})
_WINDOWS = "long-document"
_STEP = 0.1
# Bounds of the ratio, so that a single item cannot distort it.
_LEAST, _MOST = 0.05, 1000.0
# How many parameters are remembered, and how long they may be.
_MOST_KINDS, _LONGEST_PARAMETERS = 1024, 4096

Kind = tuple[str, Task, bytes]


class WorkEstimates:
    """Learns by how much items bring more work than is predicted by their bytes.

    Ratios are kept by model, task and parameters; new parameters begin with the ratio of model and
    task. They cover what bytes do not show: labels, windows, comparisons, dense scripts, cached
    rows.
    """

    def __init__(self) -> None:
        self._ratios: OrderedDict[Kind, float] = OrderedDict()

    def ratio(self, kinds: Sequence[Kind]) -> float:
        """Return the work that items of such a call bring for each predicted second."""
        for kind in kinds:
            found = self._ratios.get(kind)
            if found is not None:
                self._ratios.move_to_end(kind)
                return found
        return 1.0

    def learn(
        self, kinds: Sequence[Kind], *, predicted: float, brought: float, is_done: bool
    ) -> None:
        """Learn from the work of an item; of one that was not done it is a lower bound."""
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
    """Return the predicted seconds that each item of a call brings, by its bytes.

    `row_work` is what a row of so many tokens takes; a zero-shot item has a row for each label.
    """
    longest, labels = info.max_tokens, _count_labels(call)
    is_bounded = call.task not in _UNBOUNDED and info.algorithm != _WINDOWS
    predicted = []
    for item in call.items:
        tokens = len(item.body) // _TOKEN_BYTES + 1
        rows = 1.0 if is_bounded else max(1.0, tokens / longest)
        predicted.append(labels * rows * row_work(min(tokens, longest)))
    return predicted


def _count_labels(call: Call) -> int:
    """Return how many labels the items of a call are scored for; 1 where there are none."""
    if call.task is not Task.ZERO_SHOT:
        return 1
    try:
        return max(1, len(_zero_shot.decode(call.parameters).labels))
    except UNREADABLE:
        return 1  # it is refused later


_zero_shot = msgspec.msgpack.Decoder(ZeroShotParameters)


def kinds_of(call: Call) -> list[Kind]:
    """Return the kinds of a call's items, the narrowest first."""
    broad = (call.model, call.task, b"")
    if not call.parameters or len(call.parameters) > _LONGEST_PARAMETERS:
        return [broad]
    return [(call.model, call.task, call.parameters), broad]
