"""Defines what the routes answer.

Fields that a later gateway adds are ignored. An item that failed (with `on_error="continue"`) has
an `error`, and the other fields of its result are empty.
"""

import math
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")


class ItemError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why an item has no answer."""

    code: str
    """Stable; what programs should look at."""
    detail: str
    """What was wrong, and what to do."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Has what the results of all tasks share."""

    truncated: bool = False
    """The model read a part of the text only."""
    error: ItemError | None = None
    """Why the item has no answer."""


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """A label and how sure the model is of it."""

    label: str
    score: float


class Labels(Result, frozen=True, kw_only=True):
    """The labels of a text, best first."""

    labels: list[LabelScore] = []


class Choice(Result, frozen=True, kw_only=True):
    """The chosen option of a prompt."""

    choice: int = -1
    """Its place among the choices, from 0."""
    scores: list[float] = []
    """One for each choice, in their order."""


class RankedDocument(Result, frozen=True, kw_only=True):
    """A document and how well it answers the query."""

    index: int
    """Its place among the documents of the request, from 0."""
    score: float = math.nan
    """More is better."""
    document: str | None = None
    """Its text, with `return_documents`."""


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """A named entity; `start` and `end` count characters of the text."""

    label: str
    score: float
    text: str
    start: int
    end: int


class Entities(Result, frozen=True, kw_only=True):
    """The named entities of a text, in its order."""

    entities: list[Entity] = []


class Embedding(Result, frozen=True, kw_only=True):
    """The vector of a text."""

    embedding: list[float] = []


class Tokens(Result, frozen=True, kw_only=True):
    """The tokens of a text; with `counts_only` the three lists are empty."""

    count: int = 0
    """How many there are."""
    fits: bool = True
    """Whether the model reads all of the text at once."""
    windows: int = 0
    """How many windows the text is."""
    ids: list[int] = []
    """Their numbers in the model's vocabulary."""
    tokens: list[str] = []
    """How the vocabulary writes them."""
    offsets: list[tuple[int, int] | None] = []
    """The first character of each in the text, and the one after its last; of one that the
    tokenizer adds, `None`."""


class DecodedText(Result, frozen=True, kw_only=True):
    """The text of tokens."""

    text: str = ""
    """As the tokenizer joins them."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request used, as it is billed."""

    items: int = 0
    hit: int = 0
    collapsed: int = 0
    computed: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0
    truncated: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        names = self.__struct_fields__
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Answer(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The answer of a model: a result for each item, in their order (rerank: best first)."""

    model: str
    revision: str
    """The digest of the files that shape the model's answers."""
    results: list[R]
    usage: Usage
    request_id: str = ""
    """Names the request in the gateway's logs; the header `X-Request-Id`."""
    cache_status: str = ""
    """What the result cache did; the header `Cache-Status` (RFC 9211)."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the key may use."""

    name: str
    tasks: list[str]
    """What can be asked of it."""
    revision: str
    profile: str
    """The numeric precision it runs with."""
    max_tokens: int
    """Tokens that it reads of a text."""
    labels: list[str] | None = None
    dimensions: int | None = None
    description: str = ""
    demonstration: bool = False
    regions: list[str] = []


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models that the key may use."""

    data: list[Model]


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group; `cost` is an exact decimal number of `currency`."""

    group: dict[str, str]
    requests: int
    items: int
    hit: int
    collapsed: int
    computed: int
    failed: int
    rows: int
    tokens: int
    cost: str
    currency: str


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant's budget of this month, and what is left of it: decimal numbers of `currency`."""

    month: str
    amount: str
    currency: str
    spent: str
    remaining: str
    thresholds: tuple[int, ...]
    refuse: bool


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's usage from `since` (included) to `until` (not included)."""

    since: str
    until: str
    data: list[UsageLine]
    budget: BudgetReport | None = None


class PastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request of the tenant."""

    id: str
    time: datetime
    """When it was answered."""
    key: str
    """The id of the key that it came with."""
    model: str
    task: str
    status: int
    code: str
    """That of the error, if it was one."""
    region: str
    revision: str
    usage: Usage | None
    """`None` where it was recorded together with others."""


class RotatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its new text, this once."""

    id: str
    key: str
    """The new text; the client goes on with the former one."""
    former_expires: datetime
    """Until when the former text is valid."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the gateway answers requests, and what it lacks."""

    ready: bool
    missing: list[str] = []
    degraded: list[str] = []


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process answers."""

    status: str


JsonResult = Any  # of a model's own algorithm: any JSON value
