"""Defines values that packages of a backend exchange."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.wire.metric_declaration import LABEL, counter, gauge, histogram
from sluicegate.wire.plans import RevisionStatistics
from sluicegate.wire.protocol import ModelState

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


class AdaptedPrompt(msgspec.Struct, frozen=True):
    """Holds a prompt, and the number of the adapter that computes its text; 0 is no adapter."""

    text: str
    adapter: int


# What is put before a text.
Prompt = str | AdaptedPrompt
# A graph reads the number of a row's adapter, times this number, in the types of its tokens.
TOKEN_TYPES: Final = 2
# The input of a tokenizer for one row.
RowInput = Text | TokenIds
# How token vectors are combined into the vector of a text.
Pooling = Literal["mean", "cls", "max"]


class OutputKind(StrEnum):
    """Names the kinds of output for a row: one vector, one vector per token, or both.

    `JOINED` is one flat array that holds all outputs of a row, so that one run computes them all.
    """

    POOLED = "pooled"
    TOKENS = "tokens"
    JOINED = "joined"


class JoinedWidth(NamedTuple):
    """Holds the size of a `JOINED` output: `fixed` values of the row, then `each` of each token."""

    fixed: int = 0
    each: int = 0

    def of(self, length: int) -> int:
        """Return the number of values of a row of `length` tokens."""
        return self.fixed + self.each * length

    def real(self, values: FloatArray, kind: OutputKind, length: int) -> FloatArray:
        """Return the output of a row of `length` tokens without its padding."""
        if kind is OutputKind.POOLED:
            return values
        return values[: length if kind is OutputKind.TOKENS else self.of(length)]


class Encoding(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the token ids and type ids of a row.

    `type_ids` is `None` if all type ids are zero. `key` identifies the combination of all other
    fields. If the text was truncated, `truncated_from` is the length in tokens of the whole text.
    Tokens from the place `attended` on are computed, but no token attends to them; 0 means that
    tokens attend to all tokens.
    """

    ids: IntArray
    type_ids: IntArray | None
    key: bytes
    truncated_from: int = 0
    attended: int = 0

    def adapted(self, adapter: int) -> "Encoding":
        """Return the row that an adapter computes."""
        if not adapter:
            return self
        types = np.full_like(self.ids, adapter * TOKEN_TYPES)
        if self.type_ids is not None:
            types += self.type_ids
        key = b"%b|a%d" % (self.key, adapter)
        return msgspec.structs.replace(self, type_ids=types, key=key)


class TokenOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the position of a token in its text; `start` and `end` count characters."""

    start: int
    end: int
    special: bool
    continues_word: bool


class PlacedTokens(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the tokens of a text without special tokens.

    `places` has the start and end of each token in characters, and `words` the number of its word.
    """

    ids: IntArray
    places: IntArray
    words: IntArray


class Segment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the tokens of a text without special tokens, and their positions."""

    ids: IntArray
    pieces: list[TokenOffsets]


_PHASES: Final = histogram(
    "sluicegate_backend_phase_duration_seconds",
    "Time of a phase. `phase`: `tokenize` (a call of the tokenizer, with the wait for its thread), "
    "`queue` (the longest wait of a batch's rows), `run` (a batch).",
    *("encoder", "phase"),
)
_RELEASES: Final = counter(
    "sluicegate_backend_releases_total",
    "Batches by the reason why no more rows joined: `idle` (no more rows waited), `full`, "
    "`deadline` (the batch would be late), `length` (lengths differ too much), `outlier` (like "
    "`length`, for a batch of one row), `shared` (idle threads run the others).",
    *("encoder", "reason"),
)
_QUEUED_ROWS: Final = gauge("sluicegate_backend_queued_rows", "Rows waiting.", "encoder")
_QUEUED_TOKENS: Final = gauge(
    "sluicegate_backend_queued_tokens",
    "Tokens waiting. Use this metric for autoscaling.",
    "encoder",
)
_RUNS_IN_FLIGHT: Final = gauge("sluicegate_backend_runs_in_flight", "Batches running.", "encoder")
_BATCHES: Final = counter("sluicegate_backend_batches_total", "Batches run.", "encoder")
_ROWS: Final = counter("sluicegate_backend_rows_total", "Rows run through the encoder.", "encoder")
_TOKENS: Final = counter(
    "sluicegate_backend_tokens_total", "Tokens run, without padding.", "encoder"
)
_PADDED_TOKENS: Final = counter(
    "sluicegate_backend_padded_tokens_total",
    "Tokens of padded batches: the number of rows times the length of the longest row. "
    "This includes positions that a graph skips, but not the rounding of shapes on a GPU.",
    "encoder",
)
_FAILED_ROWS: Final = counter(
    "sluicegate_backend_failed_rows_total", "Rows that the model could not compute.", "encoder"
)
_SKIPPED_ROWS: Final = counter(
    "sluicegate_backend_skipped_rows_total",
    "Rows dropped because their callers had disconnected.",
    "encoder",
)
_EXPIRED_ROWS: Final = counter(
    "sluicegate_backend_expired_rows_total",
    "Rows dropped because they could not end before their deadline.",
    "encoder",
)
_LATE_ROWS: Final = counter(
    "sluicegate_backend_late_rows_total",
    "Rows run after their deadline; expected to stay 0.",
    "encoder",
)
_REFUSED_ROWS: Final = counter(
    "sluicegate_backend_refused_rows_total",
    "Rows refused because the queue was full, or too slow for their deadline. An item "
    "that is refused before tokenization counts as one row.",
    "encoder",
)
_BUSY: Final = counter(
    "sluicegate_backend_busy_seconds_total", "Seconds that worker threads were busy.", "encoder"
)
_ROWS_PER_SECOND: Final = gauge(
    "sluicegate_backend_rows_per_second", "Rows per second while the encoder is busy.", "encoder"
)
_TOKENS_PER_SECOND: Final = gauge(
    "sluicegate_backend_tokens_per_second",
    "Tokens per second while the encoder is busy.",
    "encoder",
)
_QUEUED_SECONDS: Final = gauge(
    "sluicegate_backend_queued_seconds",
    "Predicted seconds to run the waiting interactive rows.",
    "encoder",
)


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the present size of a batcher's queue, and its counts since the start.

    `work` is the predicted time of all batches in seconds, without their fixed cost. `wasted` is
    the part of `work` that padding takes (`CostModel.padding`).
    """

    queued_rows: Annotated[int, _QUEUED_ROWS] = 0
    queued_tokens: Annotated[int, _QUEUED_TOKENS] = 0
    runs_in_flight: Annotated[int, _RUNS_IN_FLIGHT] = 0
    batches: Annotated[int, _BATCHES] = 0
    rows: Annotated[int, _ROWS] = 0
    tokens: Annotated[int, _TOKENS] = 0
    padded_tokens: Annotated[int, _PADDED_TOKENS] = 0
    work: float = 0.0
    wasted: float = 0.0
    failed_rows: Annotated[int, _FAILED_ROWS] = 0
    skipped_rows: Annotated[int, _SKIPPED_ROWS] = 0
    expired_rows: Annotated[int, _EXPIRED_ROWS] = 0
    late_rows: Annotated[int, _LATE_ROWS] = 0
    refused_rows: Annotated[int, _REFUSED_ROWS] = 0
    busy: Annotated[float, _BUSY] = 0.0
    rows_per_second: Annotated[float, _ROWS_PER_SECOND] = 0.0
    tokens_per_second: Annotated[float, _TOKENS_PER_SECOND] = 0.0
    queued_seconds: Annotated[float, _QUEUED_SECONDS] = 0.0
    releases: Annotated[dict[str, int], _RELEASES] = {}
    durations: Annotated[dict[str, tuple[tuple[int, ...], float]], _PHASES] = {}
    """For the phases `queue` and `run`: the counts by bucket, and the sum in seconds."""


def padding_waste_ratio(*queues: QueueStatistics) -> float:
    """Return the fraction of the predicted time that padding takes."""
    work = sum(queue.work for queue in queues)
    return sum(queue.wasted for queue in queues) / work if work else 0.0


_CACHED_ROWS: Final = counter(
    "sluicegate_backend_known_rows_total", "Rows answered from the row cache.", "encoder"
)
_COALESCED_ROWS: Final = counter(
    "sluicegate_backend_joined_rows_total", "Rows coalesced with an equal row in flight.", "encoder"
)


class RowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts rows that were cached, coalesced and computed, and describes the row cache."""

    cached_rows: Annotated[int, _CACHED_ROWS] = 0
    coalesced_rows: Annotated[int, _COALESCED_ROWS] = 0
    computed_rows: int = 0
    entries: int = 0
    size_bytes: int = 0
    evicted_rows: int = 0


class EncoderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the statistics of an encoder's queue and rows."""

    name: Annotated[str, LABEL]
    queue: QueueStatistics = QueueStatistics()
    rows: RowStatistics = RowStatistics()
    tokenization: Annotated[tuple[tuple[int, ...], float], _PHASES("tokenize")] = ((), 0.0)
    """Durations of calls of the tokenizer: the counts by bucket, and the sum in seconds."""


# Fields that describe the present, and are no counts.
_PRESENT: Final = frozenset(
    {
        *("name", "queued_rows", "queued_tokens", "runs_in_flight", "rows_per_second"),
        *("tokens_per_second", "queued_seconds", "entries", "size_bytes", "evicted_rows"),
    }
)


def add_loads(past: EncoderStatistics, present: EncoderStatistics) -> EncoderStatistics:
    """Return the counts of an encoder over its past loads and the present one."""
    total: EncoderStatistics = _added(past, present)
    return total


def _added(past: Any, present: Any) -> Any:
    """Add numbers, also those in structs, dictionaries and tuples of the same form."""
    if isinstance(present, msgspec.Struct):
        counts = {name for name in present.__struct_fields__ if name not in _PRESENT}
        sums = {name: _added(getattr(past, name), getattr(present, name)) for name in counts}
        return msgspec.structs.replace(present, **sums)
    if isinstance(present, dict):
        both = past | present
        return {
            key: _added(past[key], present[key]) if key in past and key in present else both[key]
            for key in both
        }
    if isinstance(present, tuple):
        return tuple(map(_added, past, present)) if past and present else past or present
    return past + present


class ShadowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts how the results of shadow revisions compare with the results that were served.

    `outcomes` has the counts by `(model, revision, shadow, outcome)`. `largest` has, by `(model,
    revision, shadow)`, the largest difference between numbers in results that otherwise agree.
    """

    outcomes: Annotated[
        dict[tuple[str, str, str, str], int],
        counter(
            "sluicegate_backend_shadow_items_total",
            "Items mirrored to a shadow revision. `outcome`: `same`, `moved`, `changed`, `failed`, "
            "`skipped`.",
            *("model", "arm", "shadow", "outcome"),
        ),
    ] = {}
    largest: Annotated[
        dict[tuple[str, str, str], float],
        gauge(
            "sluicegate_backend_shadow_largest_difference",
            "The largest difference between numbers of results that otherwise agree.",
            *("model", "arm", "shadow"),
        ),
    ] = {}


class ResidencyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of the loaded models, and counts loads and evictions since the start.

    `durations` has the counts of loads by bucket, and the sum of their seconds.
    """

    size_bytes: Annotated[
        int,
        gauge(
            "sluicegate_backend_model_bytes",
            "Size of the loaded models, by the size of their files.",
        ),
    ] = 0
    outcomes: Annotated[
        dict[str, int],
        counter(
            "sluicegate_backend_model_loads_total",
            "Loads on demand. `outcome`: `loaded`, `failed`, `refused` (all memory was in use).",
            "outcome",
        ),
    ] = {}
    evictions: Annotated[
        dict[str, int],
        counter("sluicegate_backend_model_evictions_total", "Evictions of a model.", "model"),
    ] = {}
    durations: Annotated[
        tuple[tuple[int, ...], float],
        histogram("sluicegate_backend_model_load_duration_seconds", "Time of a load on demand."),
    ] = ((), 0.0)


_READY: Final = gauge("sluicegate_backend_ready", "Whether the backend is ready.")
_CALLS_IN_FLIGHT: Final = gauge("sluicegate_backend_calls_in_flight", "Calls being answered.")
_DEVICE_BUSY_SHARE: Final = gauge(
    "sluicegate_backend_device_busy_share", "Utilization of the device over the last seconds."
)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's statistics at one moment."""

    ready: Annotated[bool, _READY]
    calls_in_flight: Annotated[int, _CALLS_IN_FLIGHT]
    items: Annotated[
        dict[tuple[str, str, str], int],
        counter(
            "sluicegate_backend_items_total",
            "Items. `outcome`: `done`, `refused`, `expired`, `failed`, `cancelled`.",
            *("model", "task", "outcome"),
        ),
    ]
    encoders: list[EncoderStatistics]
    device_busy_share: Annotated[float, _DEVICE_BUSY_SHARE] = 0.0
    shadows: ShadowStatistics = ShadowStatistics()
    revisions: list[RevisionStatistics] = []
    lost_hosts: Annotated[
        dict[tuple[str, str], int],
        counter(
            "sluicegate_backend_lost_algorithm_hosts_total",
            "Failed processes of algorithms. The next item starts a new process. `reason`: `ended` "
            "by itself; killed as `held_by_one_step`, `held_after_its_time`, `starved`, "
            "`over_its_memory`, `over_its_threads`, `busy_without_an_item`; replaced as "
            "`worn_by_earlier_items`; `not_started`.",
            *("model", "reason"),
        ),
    ] = {}
    models: dict[str, str] = {}
    """The revision of each served model."""
    states: dict[str, ModelState] = {}
    """The states of the models, if models are loaded on demand."""
    residency: ResidencyStatistics = ResidencyStatistics()
