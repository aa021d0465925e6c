"""Computes how much memory an item takes while it is answered, besides its rows in the queue.

A gateway bounds requests, but a backend does not rely on that. The sizes are upper bounds in bytes,
computed from the decoded item and its parameters.
"""

from typing import Any, Final

from backends.byte_budget import LARGE, RETRY_AFTER, SharedBytes
from backends.errors import ItemRefused, Overloaded
from backends.protocol import ChooseItem, Task, TokenizeParameters, ZeroShotParameters

# Bytes of a token: a row has its number twice, since the row's key has it, too.
_ROW_TOKEN: Final = 16
# Bytes for each byte of a text, which may be a token, while the tokenizer reads it: for the number
# of its tokens alone, and with their places and what is shown of them.
_COUNTED: Final = 448
_TOKENS: Final = {Task.TOKENIZE: 768, Task.DETOKENIZE: 64, Task.ENTITIES: 960}
_MOST_WAITING: Final = 8192


def open_memory(limit_bytes: int, clock: Any) -> SharedBytes:
    """Return the budget of a backend, from which large items hold memory."""

    def exhausted() -> Overloaded:
        return Overloaded(
            "other large items use all the memory for large items; try again later",
            retry_after=RETRY_AFTER,
        )

    # All items of an admitted call may wait.
    return SharedBytes(
        limit_bytes,
        exhausted=exhausted,
        clock=clock,
        most_waiting=_MOST_WAITING,
        most_waiting_of_key=_MOST_WAITING,
    )


def item_bytes(task: Task, item: Any, parameters: Any, *, length: int, max_tokens: int) -> int:
    """Return how many bytes of memory an item of `length` bytes takes; 0 if they are few.

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
    elif isinstance(parameters, TokenizeParameters) and parameters.counts_only:
        size = _COUNTED * length
    else:
        size = _TOKENS.get(task, 0) * length
    return size if size > LARGE else 0


def check_fits(memory: SharedBytes, size: int) -> None:
    """Check that the backend can ever have room for an item.

    Raises:
        ItemRefused: it cannot.
    """
    if size > memory.largest():
        raise ItemRefused(
            "input_too_long",
            f"the item takes {size:,} bytes of memory with its labels or choices; at most"
            f" {memory.largest():,} are allowed; send it in parts, or fewer labels or choices",
        )
