"""Values that travel between the parts of a backend."""

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

# A sequence for a model: one text, or a pair joined by the model's separator.
Text = str | tuple[str, str]


class OutputKind(StrEnum):
    """Which output of an encoder a row asks for: one vector, or one vector per token."""

    POOLED = "pooled"
    TOKENS = "tokens"


class Encoding(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A text as a model reads it.

    `type_ids` is `None` when all are zero. `key` holds the bytes of both: equal keys are equal
    rows. Where the text was cut, `truncated_from` is how many tokens all of it would be.
    """

    ids: IntArray
    type_ids: IntArray | None
    key: bytes
    truncated_from: int = 0


class TokenSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One token's place in the text: `start` and `end` count characters of the original."""

    start: int
    end: int
    special: bool
    continues_word: bool


class Segment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The tokens of a text alone, without what a model puts around them, and their places."""

    ids: IntArray
    pieces: list[TokenSpan]


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a batcher holds now and has done since it started.

    `work` is the predicted time of its batches in seconds, without their fixed parts, `wasted` the
    part of it that padding took.
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

    @property
    def padding_waste_ratio(self) -> float:
        """The share of the work that padding made: what a graph leaves out, it does not waste."""
        return self.wasted / self.work if self.work else 0.0


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How rows were answered: known, joined to one in flight, or computed."""

    known_rows: int = 0
    joined_rows: int = 0
    computed_rows: int = 0
    entries: int = 0
    size_bytes: int = 0
    evicted_rows: int = 0


class EncoderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What an encoder's queue and its rows have done."""

    name: str
    queue: QueueStatistics
    rows: CacheStatistics


class ShadowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How mirrored items compared: counts by `(model, shadow, outcome)`.

    `largest` is how far two answers that said the same were apart at most, by `(model, shadow)`.
    """

    outcomes: dict[tuple[str, str, str], int] = {}
    largest: dict[tuple[str, str], float] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's numbers at one moment. `items` counts `(model, task, outcome)`."""

    ready: bool
    calls_in_flight: int
    items: dict[tuple[str, str, str], int]
    encoders: list[EncoderStatistics]
    device_busy_share: float = 0.0
    shadows: ShadowStatistics = ShadowStatistics()
