"""Defines values that travel between the packages of a backend."""

from enum import StrEnum
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.plans import ArmStatistics

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

# A sequence for a model: one text, or a pair joined by the model's separator.
Text = str | tuple[str, str]


class TokenIds(msgspec.Struct, frozen=True):
    """Holds a text as tokens, with or without the special ones around it; `prompt` goes before."""

    ids: tuple[int, ...]
    prompt: tuple[int, ...] = ()


# What a tokenizer makes a row of.
RowInput = Text | TokenIds
# How the vectors of tokens become one of the text.
Pooling = Literal["mean", "cls", "max"]


class OutputKind(StrEnum):
    """Selects an encoder's output for a row: one vector, or one vector per token."""

    POOLED = "pooled"
    TOKENS = "tokens"


class Encoding(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a text as a model reads it.

    `type_ids` is `None` when all are zero. `key` holds the bytes of both: equal keys are equal
    rows. Where the text was cut, `truncated_from` is how many tokens all of it would be.
    """

    ids: IntArray
    type_ids: IntArray | None
    key: bytes
    truncated_from: int = 0


class TokenOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one token's place in the text: `start` and `end` count its characters."""

    start: int
    end: int
    special: bool
    continues_word: bool


class Segment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the tokens of a text without special tokens, and their places."""

    ids: IntArray
    pieces: list[TokenOffsets]


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts what is in a batcher's queue now, and what the batcher has done since its start.

    `work` is the predicted seconds of its batches without their fixed parts. `wasted` is the part
    of `work` that padding takes (`CostModel.padding`).
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
    """Of the phases `queue` and `run`: counts by bucket, and their sum."""


def padding_waste_ratio(*queues: QueueStatistics) -> float:
    """Return padding's share of the work: what a graph leaves out, it does not waste."""
    work = sum(queue.work for queue in queues)
    return sum(queue.wasted for queue in queues) / work if work else 0.0


class RowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts how rows were answered: cached, joined to one in flight, or computed."""

    known_rows: int = 0
    joined_rows: int = 0
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
    """Durations of questions to the tokenizer: counts by bucket, and their sum."""


class ShadowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts how mirrored items compared, by `(model, arm, shadow, outcome)`.

    `largest` is how far two answers that said the same were apart at most, by
    `(model, arm, shadow)`.
    """

    outcomes: dict[tuple[str, str, str, str], int] = {}
    largest: dict[tuple[str, str, str], float] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's statistics at one moment. `items` counts `(model, task, outcome)`.

    `lost_hosts` counts processes of algorithms that were lost, by `(model, reason)`.
    """

    ready: bool
    calls_in_flight: int
    items: dict[tuple[str, str, str], int]
    encoders: list[EncoderStatistics]
    device_busy_share: float = 0.0
    shadows: ShadowStatistics = ShadowStatistics()
    arms: list[ArmStatistics] = []
    lost_hosts: dict[tuple[str, str], int] = {}
    models: dict[str, str] = {}
    """The revision of each model that is served."""
