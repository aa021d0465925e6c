"""Defines the answers of routes.

Unknown fields, which a later gateway may add, are ignored. With `on_error="continue"`, the result
of a failed item has an `error`, and its other fields are empty.
"""

import math
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")


class ItemError(msgspec.Struct, frozen=True, kw_only=True):
    """Tells why an item has no result."""

    code: str
    """A stable code, for programs."""
    detail: str
    """What was wrong and what to do, for people."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Has the common fields of the results of all tasks."""

    truncated: bool = False
    """Whether the text was truncated, because it is too long for the model."""
    error: ItemError | None = None
    """Why the item has no result, if it has failed."""


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a label and its score."""

    label: str
    score: float


class Labels(Result, frozen=True, kw_only=True):
    """Holds the labels of a text, best first."""

    labels: list[LabelScore] = []


class Choice(Result, frozen=True, kw_only=True):
    """Holds the best choice for a prompt."""

    choice: int = -1
    """The index of the best choice."""
    scores: list[float] = []
    """The scores of all choices, in their order."""


class RankedDocument(Result, frozen=True, kw_only=True):
    """Holds a document's relevance for the query."""

    index: int
    """The index of the document in the request."""
    score: float = math.nan
    """The relevance; higher is better."""
    document: str | None = None
    """The text of the document, with `return_documents`."""


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a named entity; `start` and `end` count characters of the text."""

    label: str
    score: float
    text: str
    start: int
    end: int


class RelationEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a head or a tail; `start` and `end` count characters of the text."""

    score: float
    text: str
    start: int
    end: int


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a relation of the type `label`, from its head to its tail."""

    label: str
    head: RelationEnd
    tail: RelationEnd


class Entities(Result, frozen=True, kw_only=True):
    """Holds the named entities of a text, in their order, and the relations that you ask for."""

    entities: list[Entity] = []
    relations: list[Relation] = []


class AnswerSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an answer to a question; `start` and `end` count characters of the context."""

    answer: str
    score: float
    start: int
    end: int


class Spans(Result, frozen=True, kw_only=True):
    """Holds the answers to a question, best first."""

    answers: list[AnswerSpan] = []
    no_answer_score: float = math.nan
    """The score of "the context has no answer", to compare with the answers' scores."""


class SparseVector(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the weights of tokens, by their numbers in the vocabulary."""

    indices: list[int] = []
    values: list[float] = []


class Embedding(Result, frozen=True, kw_only=True):
    """Holds the outputs of a text that were asked for; others are empty."""

    embedding: list[float] = []
    sparse: SparseVector = SparseVector()
    sparse_tokens: list[str] = []
    multi_vector: list[list[float]] = []
    multi_vector_tokens: list[str] = []


class Tokens(Result, frozen=True, kw_only=True):
    """Holds the tokens of a text.

    With `counts_only`, the lists `ids`, `tokens` and `offsets` are empty.
    """

    count: int = 0
    """The number of tokens."""
    fits: bool = True
    """Whether the whole text fits into the model's maximum length."""
    windows: int = 0
    """The number of windows that the text needs."""
    ids: list[int] = []
    """The ids of the tokens in the vocabulary."""
    tokens: list[str] = []
    """The tokens as they are in the vocabulary."""
    offsets: list[tuple[int, int] | None] = []
    """The start and end of each token in the text, in characters; `None` for a special token."""


class DecodedText(Result, frozen=True, kw_only=True):
    """Holds the text of tokens."""

    text: str = ""
    """The text, as the tokenizer decodes it."""


class RequestUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is billed."""

    items: int = 0
    hit: int = 0
    collapsed: int = 0
    computed: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0


class Usage(RequestUsage, frozen=True, kw_only=True):
    """Holds the usage of a request, as it is billed."""

    truncated: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        names = self.__struct_fields__
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Answer(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """Holds the answer to a request: one result per item, in order (`rerank`: best first)."""

    model: str
    revision: str
    """The digest of the model's files."""
    results: list[R]
    usage: Usage
    request_id: str = ""
    """The id of the request in the gateway's logs, from the header `X-Request-Id`."""
    cache_status: str = ""
    """Whether results were cached, from the header `Cache-Status` (RFC 9211)."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a finding of a detector; `start` and `end` count characters of the text."""

    detector: str
    action: str
    """What the detector asks for: `flag`, `redact` or `block`."""
    label: str
    score: float
    start: int
    end: int
    model: str = ""
    """The model that found it, or ""."""
    revision: str = ""


class GuardResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a guard's verdict about a text."""

    verdict: str
    """What to do with the text: `allow`, `flag`, `redact` or `block`."""
    findings: list[Finding] = []
    """The findings in the order of the text."""
    text: str = ""
    """With `redact`, the text with placeholders."""
    message: str = ""
    """What the guard's configuration says about a text that findings block."""
    blocked_from: int | None = None
    """With `pieces`, the first piece that has a part of a finding that blocks."""
    holdback: int | None = None
    """With `pieces`, how many code points at the end of `text`, or of the pieces if nothing is
    redacted, must wait for the next piece. If there is none, all may be sent."""
    error: ItemError | None = None
    """Why the guard could not look at all of the text. `on_error` of the guard is the verdict,
    unless a finding blocks the text."""


class GuardAnswer(Answer[GuardResult], frozen=True, kw_only=True):
    """Holds a guard's verdict about each text, in order."""

    guard: str
    placeholders: dict[str, str] = {}
    """With `restore`, the original text of each placeholder."""


class RouteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the target that a router chose for a text."""

    target: str
    chosen: str = ""
    """If the router is in shadow mode, the target that its rules chose."""
    decided_by: Finding | None = None
    """The finding that decided; `None` if no rule decided."""
    findings: list[Finding] = []
    """The findings in the order of the text."""
    error: ItemError | None = None
    """Why the router could not look at all of the text. `on_error` or `default` of the router is
    the target."""


class RouteAnswer(Answer[RouteResult], frozen=True, kw_only=True):
    """Holds a router's target for each text, in order."""

    router: str


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that the key may use."""

    name: str
    tasks: list[str]
    """The tasks that the model answers."""
    revision: str
    profile: str
    """The numeric precision of the model."""
    max_tokens: int
    """The maximum length of a text in tokens."""
    labels: list[str] | None = None
    dimensions: int | None = None
    prompts: list[str] = []
    outputs: list[str] | None = None
    description: str = ""
    demonstration: bool = False
    regions: list[str] = []


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the models that the key may use."""

    data: list[Model]


class UsageLine(RequestUsage, frozen=True, kw_only=True):
    """Holds the usage of one group; `cost` is an exact decimal number in `currency`."""

    group: dict[str, str]
    requests: int
    cost: str
    currency: str


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the tenant's budget of this month; amounts are exact decimal numbers in `currency`."""

    month: str
    amount: str
    currency: str
    spent: str
    remaining: str
    thresholds: tuple[int, ...]
    refuse: bool


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a tenant's usage from `since` (inclusive) to `until` (exclusive)."""

    since: str
    until: str
    data: list[UsageLine]
    budget: BudgetReport | None = None


class PastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the outcome of an earlier request of the tenant."""

    id: str
    time: datetime
    """When the request was answered."""
    key: str
    """The id of the API key."""
    model: str
    task: str
    status: int
    code: str
    """The code of the error, or ""."""
    region: str
    """The gateway region that answered."""
    backend_region: str = ""
    """The region of the backends that answered; empty if the results were cached."""
    revision: str
    client_id: str = ""
    """The id that the caller gave the request, or ""."""
    usage: Usage | None
    """The usage, or `None` if it was recorded together with other requests."""


class PastRequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Holds earlier requests of the tenant, at most 100, newest first."""

    data: list[PastRequest]


class RotatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the new secret of a key, which is shown only once."""

    id: str
    key: str
    """The new secret. This client still uses the former secret."""
    former_expires: datetime
    """When the former secret expires."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Tells whether the gateway can answer requests, and which dependencies are missing."""

    ready: bool
    missing: list[str] = []
    degraded: list[str] = []


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """Tells that the gateway's process answers."""

    status: str


JsonResult = Any  # the result of a model's own algorithm, which may be any JSON value
