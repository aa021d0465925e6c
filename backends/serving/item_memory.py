"""Computes the memory that an item takes while it is answered, without its queued rows.

A gateway limits the size of requests, but a backend does not rely on this limit. Sizes are upper
bounds in bytes, which are computed from the decoded item and its parameters.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from sluicegate.backends.errors import ItemRefused, Overloaded
from sluicegate.backends.pipelines.word_rows import WINDOWS_AT_ONCE
from sluicegate.wire.byte_budget import LARGE, RETRY_AFTER, SharedBytes
from sluicegate.wire.protocol import (
    MAX_LABELS,
    ChooseItem,
    EntitiesParameters,
    Task,
    TokenizeParameters,
    ZeroShotParameters,
)

# Bytes per token of a row. The row and its key both hold the token id.
_ROW_TOKEN: Final = 16
# Bytes that the tokenizer needs per byte of text, if each byte is a token: to count tokens, and to
# return tokens with their offsets.
_COUNTED: Final = 448
_TOKENS: Final = {
    Task.TOKENIZE: 768,
    Task.DETOKENIZE: 64,
    Task.ENTITIES: 960,
    Task.ANSWER: 768,
    Task.GUARD: 960,
}
# Bytes of the output for a token: the scores of spans of 12 lengths for 64 labels.
_SPANS: Final = 12 * 64 * 4
_MOST_WAITING: Final = 8192


def open_memory(limit_bytes: int, clock: Any) -> SharedBytes:
    """Return the memory budget of a backend for large items."""

    def exhausted() -> Overloaded:
        return Overloaded(
            "the memory for large items is in use; try again later",
            retry_after=RETRY_AFTER,
        )

    # The bounds are high, because all items of an admitted call may wait for memory.
    return SharedBytes(
        limit_bytes,
        exhausted=exhausted,
        clock=clock,
        most_waiting=_MOST_WAITING,
        most_waiting_of_key=_MOST_WAITING,
    )


def item_bytes(task: Task, item: Any, parameters: Any, *, length: int, max_tokens: int) -> int:
    """Return the memory of an item whose body has `length` bytes, or 0 for a small item.

    A row has at most `max_tokens` tokens.
    """
    if isinstance(parameters, ZeroShotParameters):
        labels = parameters.labels
        template = len(parameters.hypothesis_template)
        hypotheses = len(labels) * template + sum(map(len, labels))
        rows = len(labels) * min(max_tokens, length) + min(len(labels) * max_tokens, hypotheses)
        size = _ROW_TOKEN * (rows + hypotheses)
    elif isinstance(item, ChooseItem):
        size = _ROW_TOKEN * (len(item.choices) * min(max_tokens, length) + length)
    elif isinstance(parameters, EntitiesParameters) and parameters.labels is not UNSET:
        described = (parameters.descriptions or {}).items()
        before = [*parameters.labels[:MAX_LABELS], *(text for each in described for text in each)]
        tokens = _tokens_at_once(before, length=length, max_tokens=max_tokens)
        # The words are split once more for relations.
        readings = 1 if parameters.relations is UNSET else 2
        size = readings * _TOKENS[task] * length + _SPANS * tokens
    elif isinstance(parameters, TokenizeParameters) and parameters.counts_only:
        size = _COUNTED * length
    else:
        size = _TOKENS.get(task, 0) * length
    return size if size > LARGE else 0


def _tokens_at_once(before: Sequence[str], *, length: int, max_tokens: int) -> int:
    """Return the tokens of the rows whose outputs are in memory; each has the texts `before`."""
    taken = sum([len(text.encode()) + 1 for text in before])
    taken = min(taken, max_tokens)
    rows = 1 + length // max(1, (max_tokens - taken) // 2)
    if rows == 1:
        return length + taken
    # Two windows share up to half of their words.
    return min(WINDOWS_AT_ONCE * max_tokens, 2 * length + rows * taken)


def check_fits(memory: SharedBytes, size: int) -> None:
    """Check that an item is not larger than the whole memory budget.

    Raises:
        ItemRefused: the item is too large.
    """
    if size > memory.largest():
        raise ItemRefused(
            "input_too_long",
            f"the item needs {size:,} bytes of memory with its labels or choices, but at most"
            f" {memory.largest():,} are allowed; send a shorter text, or fewer labels or choices",
        )
