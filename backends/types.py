"""Defines values that packages of a backend exchange."""

from enum import StrEnum
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from wire.plans import RevisionStatistics

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

# The text of a row: one text, or a pair that the model's separator joins.
Text = str | tuple[str, str]


class TokenIds(msgspec.Struct, frozen=True):
    """Holds the token ids of a text, with or without special tokens.

    `prompt` is put before the ids.
    """

    ids: tuple[int, ...]
    prompt: tuple[int, ...] = ()


# The input of a tokenizer for one row.
RowInput = Text | TokenIds
# How token vectors are combined into the vector of a text.
Pooling = Literal["mean", "cls", "max"]


class OutputKind(StrEnum):
    """Names the kinds of output for a row: one vector, or one vector per token."""

    POOLED = "pooled"
    TOKENS = "tokens"


class Encoding(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the token ids and type ids of a row.

    `type_ids` is `None` if all type ids are zero. `key` identifies the combination of token ids and
    type ids. If the text was truncated, `truncated_from` is the length in tokens of the whole text.
    """

    ids: IntArray
    type_ids: IntArray | None
    key: bytes
    truncated_from: int = 0


class TokenOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the position of a token in its text; `start` and `end` count characters."""

    start: int
    end: int
    special: bool
    continues_word: bool


class Segment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the tokens of a text without special tokens, and their positions."""

    ids: IntArray
    pieces: list[TokenOffsets]


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the present size of a batcher's queue, and its counts since the start.

    `work` is the predicted time of all batches in seconds, without their fixed cost. `wasted` is
    the part of `work` that padding takes (`CostModel.padding`).
    """

    queued_rows: int = 0
    queued_tokens: int = 0
    runs_in_flight: int = 0
    batches: int = 0
    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    work: float = 0.0
    wasted: float = 0.0
    failed_rows: int = 0
    skipped_rows: int = 0
    expired_rows: int = 0
    late_rows: int = 0
    refused_rows: int = 0
    busy: float = 0.0
    rows_per_second: float = 0.0
    tokens_per_second: float = 0.0
    queued_seconds: float = 0.0
    releases: dict[str, int] = {}
    durations: dict[str, tuple[tuple[int, ...], float]] = {}
    """For the phases `queue` and `run`: the counts by bucket, and the sum in seconds."""


def padding_waste_ratio(*queues: QueueStatistics) -> float:
    """Return the fraction of the predicted time that padding takes."""
    work = sum(queue.work for queue in queues)
    return sum(queue.wasted for queue in queues) / work if work else 0.0


class RowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts rows that were cached, coalesced and computed, and describes the row cache."""

    cached_rows: int = 0
    coalesced_rows: int = 0
    computed_rows: int = 0
    entries: int = 0
    size_bytes: int = 0
    evicted_rows: int = 0


class EncoderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the statistics of an encoder's queue and rows."""

    name: str
    queue: QueueStatistics
    rows: RowStatistics
    tokenization: tuple[tuple[int, ...], float] = ((), 0.0)
    """Durations of calls of the tokenizer: the counts by bucket, and the sum in seconds."""


class ShadowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts how the results of shadow revisions compare with the results that were served.

    `outcomes` has the counts by `(model, revision, shadow, outcome)`. `largest` has, by `(model,
    revision, shadow)`, the largest difference between numbers in results that otherwise agree.
    """

    outcomes: dict[tuple[str, str, str, str], int] = {}
    largest: dict[tuple[str, str, str], float] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's statistics at one moment.

    `items` counts items for each `(model, task, outcome)`. `lost_hosts` counts failed processes of
    algorithms for each `(model, reason)`.
    """

    ready: bool
    calls_in_flight: int
    items: dict[tuple[str, str, str], int]
    encoders: list[EncoderStatistics]
    device_busy_share: float = 0.0
    shadows: ShadowStatistics = ShadowStatistics()
    revisions: list[RevisionStatistics] = []
    lost_hosts: dict[tuple[str, str], int] = {}
    models: dict[str, str] = {}
    """The revision of each served model."""
