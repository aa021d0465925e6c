"""Estimates the work of items from their size in bytes, corrected by the work of earlier items."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from sluicegate.wire.protocol import TASKS, UNREADABLE, Call, ModelInfo, Task, ZeroShotParameters

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
    cached rows, windows of long texts, and writing systems with more tokens per byte.
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

    `row_work` returns the seconds of a row from its number of tokens. A zero-shot item has one row
    per label.
    """
    longest, labels = info.max_tokens, _count_labels(call)
    is_bounded = not TASKS[call.task].has_windows and info.algorithm != _WINDOWS
    predicted = []
    for item in call.items:
        tokens = len(item.body) // _TOKEN_BYTES + 1
        rows = 1.0 if is_bounded else max(1.0, tokens / longest)
        predicted.append(labels * rows * row_work(min(tokens, longest)))
    return predicted


def _count_labels(call: Call) -> int:
    """Return the number of labels of a zero-shot call, and 1 for other tasks."""
    if call.task is not Task.ZERO_SHOT:
        return 1
    try:
        return max(1, len(_zero_shot.decode(call.parameters).labels))
    except UNREADABLE:
        return 1  # the call will be refused


_zero_shot = msgspec.msgpack.Decoder(ZeroShotParameters)


def kinds_of(call: Call) -> list[Kind]:
    """Return the kinds to which the items of a call belong, the most specific kind first.

    A kind is a combination of model, task and parameters. The broader kind has no parameters.
    """
    broad = (call.model, call.task, b"")
    if not call.parameters or len(call.parameters) > _LONGEST_PARAMETERS:
        return [broad]
    return [(call.model, call.task, call.parameters), broad]
