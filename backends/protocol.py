"""Defines the wire between gateway and backend: all that `gateway` imports of `backends`.

A *call* is one HTTP request, `POST /v1/call`, whose body is a msgpack `Call`: some items for one
model, each with the time it has left. The reply is a stream of frames, a 4-byte little-endian
length before each msgpack `Frame`; every outcome is sent when its item is done, so that a slow
item holds nobody. A `Report` follows the outcomes of each moment and is the last frame; one also
comes after each second without an outcome in which batches ran: the call waits, and does not hang.
A stream that ends without one was cut: items without an outcome are retryable. A call refused as a
whole is a non-200 status with a `Refusal`.

`GET /v1/state` answers a msgpack `ServingState`: what the backend serves and how busy it is.
`POST /v1/models/reload` reads the repository again, and answers the state when its models serve.
It may hold `ServingPlans` to follow. `POST /v1/models/check` answers a `PlanVerdict` of a trial.
"""

import struct
from enum import StrEnum
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from backends.plans import ArmName, ArmStatistics, Assignment, Serving

WIRE_VERSION = 1
CALL_PATH = "/v1/call"
STATE_PATH = "/v1/state"
RELOAD_PATH = "/v1/models/reload"
CHECK_PATH = "/v1/models/check"
MEDIA_TYPE = "application/vnd.sluicegate.v1+msgpack"
# Optional shared secret between gateway and backend; see `BackendSettings.token`.
TOKEN_HEADER = "x-sluicegate-token"  # noqa: S105 - the name of a header
_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 64 * 1024 * 1024
# What msgspec raises for bytes that are no message: malformed, no UTF-8, or nested too deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# How scores are made of logits.
Function = Literal["softmax", "sigmoid", "none"]
Aggregation = Literal["none", "simple", "first", "average", "max"]
# The number of a token in the vocabulary of a model's tokenizer.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Task(StrEnum):
    """Enumerates the tasks of models; each is a route of the API.

    Those of `TOKEN_TASKS` run no model: `ModelInfo.tasks` leaves them out, `shows_tokens` says it.
    """

    CLASSIFY = "classify"
    ZERO_SHOT = "zero-shot"
    CHOOSE = "choose"
    EMBED = "embed"
    RERANK = "rerank"
    ENTITIES = "entities"
    INFER = "infer"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


TOKEN_TASKS = (Task.TOKENIZE, Task.DETOKENIZE)

# Parameters: what all items of a request share. Encoded with msgpack in field order, their bytes
# are part of the cache key, so a field that does not change an answer has no place here.


class ClassifyParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for `top_k` labels (`None`: all); `function` makes scores of logits, if given."""

    top_k: int | None = None
    function: Function | None = None


class ZeroShotParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds candidate `labels`, put into `hypothesis_template` at its `{}`."""

    labels: list[str]
    multi_label: bool = False
    hypothesis_template: str = "This text is about {}."


class ChooseParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds nothing: the options of a choice travel with each item."""


class EmbedParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keeps the first `dimensions` values of a vector (before normalising)."""

    normalize: bool = True
    dimensions: int | None = None


class RerankParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the `query` that every document (item) is scored against."""

    query: str


class EntitiesParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects how pieces of words become entities, as Hugging Face's pipeline does."""

    aggregation: Aggregation = "simple"


class InferParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds free parameters of a model owner's algorithm."""

    parameters: dict[str, Any] = {}


class TokenizeParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a text's tokens; counted windows share `overlap` tokens with the one before."""

    counts_only: bool = False
    add_special_tokens: bool = True
    overlap: Annotated[int, msgspec.Meta(ge=0)] = 32


class DetokenizeParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for the text of tokens, without those that the tokenizer adds to every text."""

    skip_special_tokens: bool = True


class ChooseItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one prompt and the options to choose from."""

    prompt: str
    """The text that an option is to fit."""
    choices: list[str]
    """The options."""


Parameters = (
    ClassifyParameters
    | ZeroShotParameters
    | ChooseParameters
    | EmbedParameters
    | RerankParameters
    | EntitiesParameters
    | InferParameters
    | TokenizeParameters
    | DetokenizeParameters
)

PARAMETERS: dict[Task, type[Parameters]] = {
    Task.CLASSIFY: ClassifyParameters,
    Task.ZERO_SHOT: ZeroShotParameters,
    Task.CHOOSE: ChooseParameters,
    Task.EMBED: EmbedParameters,
    Task.RERANK: RerankParameters,
    Task.ENTITIES: EntitiesParameters,
    Task.INFER: InferParameters,
    Task.TOKENIZE: TokenizeParameters,
    Task.DETOKENIZE: DetokenizeParameters,
}

# The type of an item's body (msgpack) per task. `classify` takes a text or a pair of texts;
# `embed` a text or its tokens; `rerank`'s item is one document; `infer`'s is any JSON value.
ITEMS: dict[Task, Any] = {
    Task.CLASSIFY: str | tuple[str, str],
    Task.ZERO_SHOT: str,
    Task.CHOOSE: ChooseItem,
    Task.EMBED: str | tuple[TokenId, ...],
    Task.RERANK: str,
    Task.ENTITIES: str,
    Task.INFER: Any,
    Task.TOKENIZE: str,
    Task.DETOKENIZE: tuple[TokenId, ...],
}


# The results of the tasks, as JSON. A result travels as bytes, made once by the backend.
#   classify, zero-shot  {"labels": [{"label": str, "score": float}, ...]}      best first
#   choose               {"choice": int, "scores": [float, ...]}
#   embed                {"embedding": [float, ...]}
#   rerank               {"score": float}     of one document; the gateway orders the documents
#   entities             {"entities": [{"label", "score", "text", "start", "end"}, ...]}
#   infer                any JSON value
#   tokenize             {"count": int, "fits": bool, "windows": int, and unless counts alone are
#                         asked for "ids": [int], "tokens": [str], "offsets": [[int, int] | null]}
#   detokenize           {"text": str}


class CallItem(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Holds one item: its msgpack body, its seconds left, and who may share its rows.

    `traceparent` and `tracestate` (W3C) are those of the request it came with, when it has them.
    """

    body: bytes
    remaining: float
    scope: str
    traceparent: str = ""
    tracestate: str = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Holds items for one model, whose `revision` and `profile` the backend must run.

    `lane` says how urgent they are: bulk work gets a few percent of the time beside interactive.
    Without `truncate` an item whose text the model would cut is refused.
    The items of an `atomic` call are of one request: they are admitted together or not at all.
    `sent` is when it was, by the monotonic clock of `sender`, a process; 0: that is not told.
    """

    version: int = WIRE_VERSION
    model: str
    revision: str
    profile: str
    task: Task
    parameters: bytes
    items: list[CallItem]
    lane: Literal["interactive", "bulk"] = "interactive"
    atomic: bool = False
    truncate: bool = True
    sender: int = 0
    sent: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done", omit_defaults=True):
    """Holds an item's answer: JSON `result`, rows and tokens computed (0 when all were cached).

    `known` rows cost nothing: they were cached, or joined to one in flight; `known_tokens` are
    theirs, so that both tokens together are what the item has. `truncated_from` is
    the number of tokens of the longest truncated text; 0: none was. `arm` is the revision that
    answered where several share the items or one has a shadow, and `shadow` the revision that the
    item was mirrored to.
    """

    index: int
    result: bytes
    rows: int
    tokens: int
    known: int = 0
    truncated_from: int = 0
    arm: ArmName = ""
    shadow: ArmName = ""
    known_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Holds an item's failure. `code` is API; `retryable`: another backend may succeed.

    `arm` is as in `Done`.
    """

    index: int
    status: int
    code: str
    detail: str
    retryable: bool
    retry_after: float | None = None
    arm: ArmName = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Reports the load of the backend, in every reply and in its state.

    `queued_seconds` is what the interactive rows of the longest queue will take,
    `device_busy_share` of the last seconds;
    `releases` counts batches since the start, by the reason for which no row more joined.
    """

    queued_rows: int = 0
    queued_tokens: int = 0
    rows_per_second: float = 0.0
    tokens_per_second: float = 0.0
    padding_waste_ratio: float = 0.0
    queued_seconds: float = 0.0
    device_busy_share: float = 0.0
    runs_in_flight: int = 0
    releases: dict[str, int] = {}


Frame = Done | Failed | Report


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects a call as a whole: `model_not_found`, `revision_mismatch`, `overloaded`, ..."""

    code: str
    detail: str
    retryable: bool
    retry_after: float | None = None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that a backend serves.

    `revision` is the digest (12 hex digits) of every file that shapes the answers, those of models
    it is built on included. `algorithm` and `algorithm_version` name the code that answers.
    Calls for the revisions in `earlier`, which it replaced, are answered for a while. `serving` has
    the revisions behind the name; `None` for one that is named itself, as `name@1`. A backend that
    `shows_tokens` answers `TOKEN_TASKS`, and vectors of tokens where it embeds.
    """

    name: str
    revision: str
    profile: str
    tasks: list[Task]
    algorithm: str
    algorithm_version: int
    labels: list[str] | None = None
    max_tokens: int
    dimensions: int | None = None
    description: str = ""
    demonstration: bool = False
    earlier: list[str] = []
    serving: Serving | None = None
    shows_tokens: bool = False


class PlanVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a plan would serve: the model and its named revisions, and what would be broken.

    `problems` are those of the model, of its revisions and of models that build on it. Both are
    empty where the repository lacks the model.
    """

    models: list[ModelInfo] = []
    problems: dict[str, str] = {}


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the driver tells of a GPU; what it does not tell, as of MIG devices, is `None`.

    `device` is the number of the card in the driver, which its MIG devices share. `utilization` is
    the share of time in which it was busy. `throttling` says why its clocks are low, if they are.
    `ecc_errors` are those since the driver was loaded that were corrected, and that were not.
    """

    device: int
    uuid: str
    name: str
    used_bytes: int
    total_bytes: int
    utilization: float | None = None
    watts: float | None = None
    throttling: list[str] | None = None
    ecc_errors: tuple[int, int] | None = None


class ServingState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's identity, readiness, models and load.

    `missing` says what is wrong, and of a ready backend which models are; `problems` what is wrong
    with revisions, served or not. One that is `leaving` is not ready and still takes calls. `plans`
    is the version of the `ServingPlans` followed, `assignment` what to serve, `arms` items by arm.
    """

    backend_id: str
    region: str
    ready: bool
    leaving: bool = False
    missing: list[str]
    provider: str
    models: list[ModelInfo]
    problems: dict[str, str] = {}
    plans: int = 0
    assignment: Assignment = Assignment()
    arms: list[ArmStatistics] = []
    gpu: GpuState | None = None
    report: Report


_Message = TypeVar("_Message")
_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Any) -> bytes:
    """Return `frame` as it travels: its length, then msgpack."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class MessageReader(Generic[_Message]):
    """Cuts a stream of bytes into messages, whatever the sizes of its chunks."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Message]) -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def feed(self, chunk: bytes, messages: list[_Message] | None = None) -> list[_Message]:
        """Append to `messages` the frames that `chunk` completes, and return them.

        Raises:
            msgspec.DecodeError: the bytes are no frame of this version.
        """
        messages = [] if messages is None else messages
        data: bytes | bytearray = chunk
        if self._rest:
            self._rest += chunk
            data = self._rest
        start, size = 0, len(data)
        while size - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MAX_FRAME_BYTES:
                raise msgspec.DecodeError(f"a frame of {length} bytes is over the limit")
            body = start + _LENGTH.size
            if size - body < length:
                break
            start = body + length
            try:
                messages.append(self._decoder.decode(data[body:start]))
            except UNREADABLE as error:
                raise msgspec.DecodeError(f"a frame cannot be read: {error}") from None
        if data is chunk:
            self._rest += data[start:]
        else:
            del self._rest[:start]
        return messages


class FrameReader(MessageReader[Frame]):
    """Cuts a reply of a backend into frames."""

    def __init__(self) -> None:
        super().__init__(_frame_decoder)
