"""Defines the protocol between gateway and backend.

A *call* is one HTTP request, `POST /v1/call`. Its body is a msgpack `Call`: items for one model,
each with the time until its deadline. The response is a stream of frames. A frame is a 4-byte
little-endian length and a msgpack `Frame`. The backend sends the outcome of each item as soon as
the outcome is ready.

The last frame is a `Report`. The backend also sends a `Report` after outcomes, and every second
while batches run, to show that the call does not hang. If a stream ends without a final report, it
was cut short, and items without an outcome can be retried. If the whole call is refused, the HTTP
status is not 200, and the body is a `Refusal`.

- `GET /v1/state` returns a msgpack `ServingState`: the backend's models and load.
- `POST /v1/models/reload` reads the repository again, and returns the state once the new models are
  served. Its body is either empty or `ServingPlans`.
- `POST /v1/models/check` takes a `PlanTrial` and returns a `PlanVerdict`.
"""

import itertools
import re
import struct
from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec

from sluicegate.wire.guards import PLAIN, TAGS, AnyDetector, EntityDetector, ModelDetector
from sluicegate.wire.plans import Assignment, RevisionNumber, RevisionStatistics, Serving
from sluicegate.wire.settings import stated

WIRE_VERSION = 1
CALL_PATH = "/v1/call"
STATE_PATH = "/v1/state"
RELOAD_PATH = "/v1/models/reload"
CHECK_PATH = "/v1/models/check"
MEDIA_TYPE = "application/vnd.sluicegate.v1+msgpack"
# Carries the optional secret that gateways and backends share; see `BackendSettings.token`.
TOKEN_HEADER = "x-sluicegate-token"  # noqa: S105 - the name of a header
MAX_LABELS = 256
"""The most labels or choices of an item."""
MAX_WINDOWS = 64
"""The most windows of a long text."""
AnswerCount = Annotated[int, msgspec.Meta(ge=1, le=100)]
AnswerTokens = Annotated[int, msgspec.Meta(ge=1, le=512)]
RowTokens = Annotated[int, msgspec.Meta(ge=1)]
Overlap = Annotated[int, msgspec.Meta(ge=0)]
MAX_ENTITIES = 20_000
"""The most spans of a text that may have a score above the threshold of a request."""
RELATION_TEXT = 160
"""The most bytes of the head and the tail of a relation, on average over `most_relations`."""
LABELS = stated(minItems=1, maxItems=MAX_LABELS)
# The most special tokens of a row of two texts, and of a row with labels.
_SPECIAL_TOKENS, _PROMPT_TOKENS = 4, 16
# The most tokens of a relation, besides its name: brackets, marks, `head` and `tail`. The most
# tokens of a description, besides its label and its text.
_RELATION_TOKENS, _DESCRIPTION_TOKENS = 24, 8
# The relations of a type that a row may have, and the bytes of text that a row usually has.
_RELATIONS, _ROW_BYTES = 19, 1024
# A word, or a part of one, of the models that read words.
_WORD = re.compile(r"\w+|[^\w\s]")
_LENGTH = struct.Struct("<I")
# The high bits of the first byte of a small map in msgpack.
_MAP = 0x80
MAX_FRAME_BYTES = 64 * 1024 * 1024
# The errors of msgspec for invalid bytes: malformed, not UTF-8, or nested too deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# Turns logits into scores.
Function = Literal["softmax", "sigmoid", "none"]
Aggregation = Literal["none", "simple", "first", "average", "max"]
# What an encoder makes of a text: one vector, the weights of words, or one vector for each token.
EmbedOutput = Literal["dense", "sparse", "multi_vector"]
# The id of a token in a tokenizer's vocabulary.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Task(StrEnum):
    """Enumerates the tasks of models. Each task is a route of the API.

    The tasks in `TOKEN_TASKS` only need a tokenizer. They are not in `ModelInfo.tasks`. Instead,
    `ModelInfo.shows_tokens` says whether a model has them.
    """

    CLASSIFY = "classify"
    ZERO_SHOT = "zero-shot"
    CHOOSE = "choose"
    EMBED = "embed"
    RERANK = "rerank"
    ENTITIES = "entities"
    ANSWER = "answer"
    GUARD = "guard"
    INFER = "infer"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


TOKEN_TASKS = (Task.TOKENIZE, Task.DETOKENIZE)

# All items of a request share its parameters. Their msgpack encoding is part of the cache key, so
# do not add a field that does not change results.


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Is the base of the parameters of all tasks.

    A field of a request's body that has the name of a parameter sets this parameter.
    """


class ClassifyParameters(Parameters, frozen=True, kw_only=True):
    """Holds the parameters of the task `classify`.

    `top_k` is the number of labels to return; `None` means all labels. `function` turns logits into
    scores; `None` means the model's own function.
    """

    top_k: int | None = None
    function: Function | None = None


class ZeroShotParameters(Parameters, frozen=True, kw_only=True):
    """Holds the candidate labels, and the template that turns each of them into a hypothesis."""

    labels: list[str]
    multi_label: bool = False
    hypothesis_template: str = "This text is about {}."


class ChooseParameters(Parameters, frozen=True, kw_only=True):
    """Has no parameters, because each item has its own choices."""


class EmbedParameters(Parameters, frozen=True, kw_only=True):
    """Holds the parameters of the task `embed`.

    Only the first `dimensions` values of each vector are kept; `None` keeps all values. With
    `normalize`, the vector is then scaled to length one. Sparse vectors ignore both. `prompt_name`
    names one of the model's prompts. Without it, the model's default prompt is put before the text.
    """

    normalize: bool = True
    dimensions: int | None = None
    # Not encoded when it is unset, so that cache keys without a prompt stay the same.
    prompt_name: str | msgspec.UnsetType = msgspec.UNSET


class RerankParameters(Parameters, frozen=True, kw_only=True):
    """Holds the query. Each item is a document, which gets a score for the query.

    `instruction` says to models that read one what makes a document relevant. With `weights`, the
    score is the sum of the scores of several outputs, each times its weight.
    """

    query: str
    instruction: str | msgspec.UnsetType = msgspec.UNSET
    weights: dict[EmbedOutput, float] | msgspec.UnsetType = msgspec.UNSET


class EntitiesParameters(Parameters, frozen=True, kw_only=True):
    """Selects which entities are found.

    - `aggregation` selects how a token classifier's tokens are grouped, as in Hugging Face's
      pipeline.
    - The other fields are for models that find entities of any type, such as GLiNER: the types, the
      score that an entity must exceed (0.5), whether entities may not overlap (true), and whether
      an entity may have several types (false). `relations` are types of relations, whose heads and
      tails must exceed the same score. `descriptions` say what labels and relations mean, by their
      names. Fields without a value are not encoded, so that requests without them keep their cache
      keys.
    """

    aggregation: Aggregation = "simple"
    labels: list[str] | msgspec.UnsetType = msgspec.UNSET
    threshold: float | msgspec.UnsetType = msgspec.UNSET
    flat: bool | msgspec.UnsetType = msgspec.UNSET
    multi_label: bool | msgspec.UnsetType = msgspec.UNSET
    relations: list[str] | msgspec.UnsetType = msgspec.UNSET
    descriptions: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class AnswerParameters(Parameters, frozen=True, kw_only=True):
    """Holds the parameters of the task `answer`, which are those of Hugging Face's pipeline.

    - `max_answer_tokens` is the pipeline's `max_answer_len`.
    - `max_row_tokens` is its `max_seq_len`; `None` means 384, or less if the model reads less.
    - `overlap` is its `doc_stride`; `None` means 128, or half a row if that is less.
    - With `align_to_words`, an answer begins and ends with whole words.
    """

    top_k: AnswerCount = 1
    max_answer_tokens: AnswerTokens = 15
    max_row_tokens: RowTokens | None = None
    overlap: Overlap | None = None
    align_to_words: bool = True

    def row(self, max_tokens: int) -> tuple[int, int]:
        """Return the most tokens of a row and their overlap, in a model that reads `max_tokens`."""
        longest = self.max_row_tokens or min(max_tokens, 384)
        return longest, min(longest // 2, 128) if self.overlap is None else self.overlap


class GuardParameters(Parameters, frozen=True, kw_only=True):
    """Holds a guard's detectors, its `allow` and its `overlap`; see `GuardConfig`.

    With `with_scores`, the result has the best scores of each detector, found or not.
    """

    detectors: tuple[AnyDetector, ...]
    allow: tuple[str, ...] = ()
    overlap: Overlap = 64
    with_scores: bool = True

    def window_overlap(self, max_tokens: int) -> int:
        """Return the overlap of windows in a model that reads `max_tokens`."""
        return min(self.overlap, max_tokens // 2)


class InferParameters(Parameters, frozen=True, kw_only=True):
    """Holds the parameters of a model owner's algorithm."""

    parameters: dict[str, Any] = {}


class TokenizeParameters(Parameters, frozen=True, kw_only=True):
    """Holds the parameters of the task `tokenize`.

    With `counts_only`, the result has no ids, tokens and offsets. The result says into how many
    windows a long text is split, if windows overlap by `overlap` tokens.
    """

    counts_only: bool = False
    add_special_tokens: bool = True
    overlap: Overlap = 32


class DetokenizeParameters(Parameters, frozen=True, kw_only=True):
    """Holds an option of detokenization: by default, the text has no special tokens."""

    skip_special_tokens: bool = True


class ChooseItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a prompt and its choices."""

    prompt: str
    """The text to find a choice for."""
    choices: Annotated[list[str], LABELS]
    """The texts to choose from."""


class AnswerItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a question, and the text that has its answer."""

    question: str
    """The question."""
    context: str
    """The text whose spans may be answers."""


class RowLimits(NamedTuple):
    """Holds the most tokens of a row, and the most words; 0 words mean that only tokens count."""

    tokens: int
    words: int = 0


def most_windows(
    item: AnswerItem, parameters: AnswerParameters, limits: RowLimits, *, token_bytes: int = 1
) -> int:
    """Return an upper bound of the windows of a context, if a token has `token_bytes` bytes."""
    longest, overlap = parameters.row(limits.tokens)
    room = longest - len(item.question.encode()) // token_bytes - _SPECIAL_TOKENS
    rest = len(item.context.encode()) // token_bytes - room
    return min(MAX_WINDOWS, 1 + _parts(rest, room - overlap))


def _parts(length: int, step: int) -> int:
    """Return how many steps reach a length; 0 for a length below 1."""
    return max(0, -(-length // max(1, step)))


class EmbedItem(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Holds a text or token ids, and the output to return; a plain text asks for `dense`.

    Each output of a text is an item, so each has a cache entry. With `tokens`, the result also has
    the tokens of a sparse vector or of token vectors. `is_query` and `pool_factor` only change
    `multi_vector`: how the text is marked, and how many vectors become one vector.
    """

    input: str | tuple[TokenId, ...]
    output: EmbedOutput
    is_query: bool = False
    pool_factor: Annotated[int, msgspec.Meta(ge=1)] = 1
    tokens: bool = False


_embed_item = msgspec.msgpack.Decoder(EmbedItem)


def read_embed_item(body: bytes) -> EmbedItem | None:
    """Return the `EmbedItem` of an encoded item of `embed`; `None` for a plain text or tokens."""
    return _embed_item.decode(body) if body and body[0] & 0xF0 == _MAP else None


def embed_output(body: bytes) -> EmbedOutput:
    """Return the output that an encoded item of `embed` asks for."""
    found = read_embed_item(body)
    return "dense" if found is None else found.output


def most_entity_windows(
    item: str, parameters: EntitiesParameters, limits: RowLimits, *, token_bytes: int = 1
) -> int:
    """Return an upper bound of the windows of a text, if a token has `token_bytes` bytes.

    With labels, each window has them before its words, and two windows share up to half of these. A
    tokenizer may begin each word and each label with a token of its own. GLiNER2 adds a full stop.
    Relations have windows of their own.
    """
    size = len(item.encode())
    if parameters.labels is msgspec.UNSET and parameters.relations is msgspec.UNSET:
        room = limits.tokens - _SPECIAL_TOKENS
        return min(MAX_WINDOWS, 1 + _parts(size // token_bytes - room, room - room // 4))
    # A backend refuses more labels and descriptions than these.
    described = itertools.islice((parameters.descriptions or {}).items(), 2 * MAX_LABELS)
    more = _tokens([name + text for name, text in described], _DESCRIPTION_TOKENS, token_bytes)
    # Each label has a token before it, and another one is before the words.
    given = ((parameters.labels, 2), (parameters.relations, _RELATION_TOKENS))
    return sum(
        [
            _word_windows(
                item,
                limits,
                taken=more + _tokens(labels[:MAX_LABELS], own, token_bytes),
                token_bytes=token_bytes,
            )
            for labels, own in given
            if labels is not msgspec.UNSET
        ]
    )


def _tokens(texts: list[str], own: int, token_bytes: int) -> int:
    """Return the tokens of texts; each has `own` tokens more."""
    return sum([len(text.encode()) // token_bytes + own for text in texts])


def _word_windows(item: str, limits: RowLimits, *, taken: int, token_bytes: int) -> int:
    """Return an upper bound of the windows of words after labels of `taken` tokens."""
    size = len(item.encode()) + 1  # the full stop
    room = max(1, limits.tokens - taken - _PROMPT_TOKENS)
    most = limits.words or room
    if 2 * size <= min(room, most):
        return 1
    words = 1 + sum(1 for _ in itertools.islice(_WORD.finditer(item), MAX_WINDOWS * most))
    tokens = size // token_bytes + (words if token_bytes == 1 else 0)
    windows = 1 + _parts(tokens - room, room - room // 2)
    if limits.words:
        windows += _parts(words - most, most - most // 2)
    return min(MAX_WINDOWS, windows)


def most_relations(size: int, types: int) -> int:
    """Return the most relations of some types that the answer for a text of `size` bytes has."""
    return min(MAX_ENTITIES, _RELATIONS * types * (1 + size // _ROW_BYTES))


def most_guard_windows(item: str, parameters: GuardParameters, limits: RowLimits) -> int:
    """Return an upper bound of the rows of all detectors, as if each byte were a token."""
    room = limits.tokens - _SPECIAL_TOKENS
    step = room - parameters.window_overlap(limits.tokens)
    windows = min(MAX_WINDOWS, 1 + _parts(len(item.encode()) - room, step))
    readings = 1 if PLAIN.fullmatch(item) else 4 if TAGS.search(item) else 2
    return readings * sum(
        most_entity_windows(item, EntitiesParameters(labels=list(one.labels)), limits)
        if isinstance(one, EntityDetector)
        else windows
        for one in parameters.detectors
        if isinstance(one, ModelDetector)
    )


class TaskTypes(msgspec.Struct, frozen=True):
    """Declares what a task takes: its parameters, and the type of an item's msgpack body.

    If a task `has_windows`, an item that is too long for one row takes several, and is not
    truncated. If a task `repeats_parameters`, each row holds the texts in its parameters. `rows`
    returns an upper bound of an item's rows from the item, its parameters and what fits into a row.
    Without it, limits reserve one row for an item.
    """

    parameters: type[Parameters]
    item: Any
    has_windows: bool = False
    repeats_parameters: bool = False
    rows: Callable[[Any, Any, RowLimits], int] | None = None


# `classify` takes a text or a pair of texts, `embed` a text, token ids or an `EmbedItem`, `rerank`
# a document, and `infer` any JSON value.
TASKS: dict[Task, TaskTypes] = {
    Task.CLASSIFY: TaskTypes(ClassifyParameters, str | tuple[str, str]),
    Task.ZERO_SHOT: TaskTypes(
        ZeroShotParameters,
        str,
        repeats_parameters=True,
        rows=lambda _, parameters, __: len(parameters.labels),
    ),
    Task.CHOOSE: TaskTypes(
        ChooseParameters, ChooseItem, has_windows=True, rows=lambda item, _, __: len(item.choices)
    ),
    Task.EMBED: TaskTypes(EmbedParameters, str | tuple[TokenId, ...] | EmbedItem),
    Task.RERANK: TaskTypes(RerankParameters, str, repeats_parameters=True),
    Task.ENTITIES: TaskTypes(
        EntitiesParameters,
        str,
        has_windows=True,
        repeats_parameters=True,
        rows=most_entity_windows,
    ),
    Task.ANSWER: TaskTypes(AnswerParameters, AnswerItem, has_windows=True, rows=most_windows),
    Task.GUARD: TaskTypes(GuardParameters, str, has_windows=True, rows=most_guard_windows),
    Task.INFER: TaskTypes(InferParameters, Any, has_windows=True),
    Task.TOKENIZE: TaskTypes(TokenizeParameters, str),
    Task.DETOKENIZE: TaskTypes(DetokenizeParameters, tuple[TokenId, ...]),
}
PARAMETERS = {task: types.parameters for task, types in TASKS.items()}
ITEMS = {task: types.item for task, types in TASKS.items()}


def item_fields(task: Task) -> tuple[str, ...]:
    """Return the names of the fields of an item; empty if an item is not an object."""
    item = ITEMS[task]
    is_object = isinstance(item, type) and issubclass(item, msgspec.Struct)
    return item.__struct_fields__ if is_object else ()


def takes_text(task: Task) -> bool:
    """Return whether an item of a task may be a text alone."""
    item = ITEMS[task]
    return item in (str, Any) or str in get_args(item)


# The results of the tasks, as the backend encodes them in JSON:
#   classify, zero-shot  {"labels": [{"label": str, "score": float}, ...]}      best first
#   choose               {"choice": int, "scores": [float, ...]}
#   embed                {"embedding": [float, ...]}, {"sparse": {"indices": [int, ...], "values":
#                        [float, ...]}} or {"multi_vector": [[float, ...], ...]}, by the output;
#                        with `tokens` also "sparse_tokens" or "multi_vector_tokens": [str, ...]
#   rerank               {"score": float}     for one document; the gateway sorts the documents
#   entities             {"entities": [{"label", "score", "text", "start", "end"}, ...]}, and with
#                        `relations` also "relations": [{"label", "head", "tail"}, ...], whose heads
#                        and tails are {"score", "text", "start", "end"}
#   answer               {"answers": [{"answer", "score", "start", "end"}, ...],  best first
#                        "no_answer_score": float}
#   guard                {"verdict": str, "findings": [{"detector", "action", "label", "score",
#                        "start", "end", "model"?, "revision"?}, ...]}           by their place
#   infer                any JSON value
#   tokenize             {"count": int, "fits": bool, "windows": int}, and without `counts_only`
#                        also "ids": [int], "tokens": [str], "offsets": [[int, int] | null]
#   detokenize           {"text": str}


class CallItem(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Holds one item: its msgpack body, the seconds until the deadline, and the cache scope.

    `traceparent` and `tracestate` are the W3C trace headers of the item's request, if it has them.
    """

    body: bytes
    remaining: float
    scope: str
    traceparent: str = ""
    tracestate: str = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Holds items for one model, which the backend must serve in this `revision` and `profile`.

    - `profile` is the precision of the model, such as `fp32`.
    - `lane` is the traffic class. While interactive items arrive, bulk items get only a few
      per cent of the device's time.
    - Without `truncate`, the backend refuses an item whose text is too long for the model.
    - The items of an `atomic` call belong to one request: all are admitted, or none.
    - `sent` is the time of sending on the monotonic clock of the process `sender`; 0 if
      unknown.
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
    """Holds an item's result as JSON, and what it cost.

    - `rows` is the number of computed rows (model inputs), and `tokens` the number of their
      tokens.
    - `known` is the number of rows that were cached, or shared with another item in progress.
      `known_tokens` is the number of their tokens.
    - `truncated_from` is the length in tokens of the longest truncated text; 0 if there is
      none.
    - `arm` is the number of the revision that answered, if the model has a traffic split or a
      shadow revision.
    - `shadow` is the number of the shadow revision that gets a copy of the item.
    - `is_partial` says that a part of the item failed, so gateways do not store the result.
    """

    index: int
    result: bytes
    rows: int
    tokens: int
    known: int = 0
    truncated_from: int = 0
    arm: RevisionNumber = ""
    shadow: RevisionNumber = ""
    known_tokens: int = 0
    is_partial: bool = False


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Holds an item's failure; `code` is part of the API.

    If the failure is `retryable`, another backend may succeed. `arm` is the same as in `Done`.
    """

    index: int
    status: int
    code: str
    detail: str
    retryable: bool
    retry_after: float | None = None
    arm: RevisionNumber = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Reports the load of a backend; it is part of every response to a call, and of `ServingState`.

    `queued_seconds` is the predicted time to compute the interactive rows in the longest queue.
    `device_busy_share` is the utilization of the device over the last seconds. `releases` counts
    batches by the reason why no more rows joined them.
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


class Variant(NamedTuple):
    """Holds the fields of `ModelInfo` that affect results. All are part of the cache key.

    During an upgrade of the backends, two variants can have the same revision, because some
    backends still execute an older version of the model's algorithm.

    - `revision` is a digest (12 hex digits) of all files that determine results, including the
      files of the models on which this model builds.
    - `algorithm` and `algorithm_version` identify the code that answers.
    """

    revision: str
    profile: str
    algorithm: str
    algorithm_version: int


_variant_values = attrgetter(*Variant._fields)
_new_tuple = tuple.__new__


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that a backend serves.

    - `Variant` describes the fields that affect results.
    - `replaced` has the variants that were replaced a short while ago. The backend still answers
      calls that name their revisions.
    - `serving` has the model's traffic split and other revisions. It is `None` for a revision with
      a name of its own, such as `name@1`.
    - `shows_tokens` means that the backend answers `TOKEN_TASKS`, and embeds token ids.
    - `prompts` has the names that `EmbedParameters.prompt_name` can have.
    - `outputs` are the outputs of the task `embed`; empty for `dense` alone.
    - `max_words` is the most words of a row of a model that reads words; 0 for other models.
    """

    name: str
    revision: str
    profile: str
    tasks: list[Task]
    algorithm: str
    algorithm_version: int
    labels: list[str] | None = None
    max_tokens: int
    max_words: int = 0
    dimensions: int | None = None
    description: str = ""
    demonstration: bool = False
    # Empty tuples cost no object, which counts where the console reads hundreds of backends.
    replaced: tuple[Variant, ...] = ()
    serving: Serving | None = None
    shows_tokens: bool = False
    prompts: tuple[str, ...] = ()
    outputs: tuple[EmbedOutput, ...] = ()

    @property
    def row_limits(self) -> RowLimits:
        """What fits into a row."""
        return RowLimits(self.max_tokens, self.max_words)

    @property
    def variant(self) -> Variant:
        """The fields that affect results."""
        return _new_tuple(Variant, _variant_values(self))


# A model that is `declared` is loaded when a call needs it.
ModelState = Literal["declared", "loading", "loaded"]


class PlanVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Reports the models that a plan would serve: the model and its named revisions.

    `problems` has the problems of the model, of its revisions and of models that build on it. If
    the repository does not have the model, `models` and `problems` are empty.
    """

    models: list[ModelInfo] = []
    problems: dict[str, str] = {}


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of a GPU, as the driver reports it.

    A field is `None` if the driver does not report it, as for MIG devices. `device` is the driver's
    number of the card; all MIG devices of a card have the same number. `utilization` is the
    fraction of time that the GPU was busy. `throttling` has the reasons for reduced clocks.
    `ecc_errors` are the corrected and the uncorrected errors since the driver was loaded.
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

    - `missing` tells why the backend is not ready, or which models are broken.
    - `problems` has the problems of models and revisions, whether they are served or not.
    - A backend that is `leaving` is not ready, but still answers calls.
    - `plans` is the version of the `ServingPlans` in effect.
    - `assignment` is the latest assignment of models that a gateway has sent.
    - `arms` has the statistics of each revision.
    - `states` has the state of each model, if the backend loads models on demand.
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
    arms: list[RevisionStatistics] = []
    gpu: GpuState | None = None
    states: dict[str, ModelState] = {}
    report: Report


_Message = TypeVar("_Message")
_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Any) -> bytes:
    """Return an encoded frame: its length and its msgpack body."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class MessageReader(Generic[_Message]):
    """Splits a stream of bytes into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Message]) -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def feed(self, chunk: bytes, messages: list[_Message] | None = None) -> list[_Message]:
        """Decode the frames that `chunk` completes. Append them to `messages`, and return the list.

        Raises:
            msgspec.DecodeError: the bytes are not a valid frame.
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
                raise msgspec.DecodeError(f"a frame of {length} bytes is too large")
            body = start + _LENGTH.size
            if size - body < length:
                break
            start = body + length
            try:
                messages.append(self._decoder.decode(data[body:start]))
            except UNREADABLE as error:
                raise msgspec.DecodeError(f"a frame is invalid: {error}") from None
        if data is chunk:
            self._rest += data[start:]
        else:
            del self._rest[:start]
        return messages


class FrameReader(MessageReader[Frame]):
    """Splits a backend's response into frames."""

    def __init__(self) -> None:
        super().__init__(_frame_decoder)
