"""Defines values that several packages of the gateway share."""

from enum import StrEnum
from typing import Annotated, NewType, Self

import msgspec

from sluicegate.gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidItem,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.gateway.periods import PERIODS
from sluicegate.wire.protocol import ModelInfo, Task
from sluicegate.wire.settings import SECONDS, stated, unit

TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
ModelName = NewType("ModelName", str)
RegionName = NewType("RegionName", str)
BackendId = NewType("BackendId", str)
RequestId = NewType("RequestId", str)
ID_DIGITS = 10
"""The last digits of a request id are a counter. It has this many hexadecimal digits."""


CONCURRENT = "concurrent"
REQUEST_UNITS = ("requests", "items")
"""The units that are charged when a request is admitted. Cache hits are charged, too."""
WORK_UNITS = ("rows", "tokens", CONCURRENT)
"""The units that are charged for computation. Cache hits and coalesced items are not charged."""


class Rule(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    cache_hash=True,
    omit_defaults=True,
):
    """Limits a rate with a token bucket of `capacity` units that refills in `window` seconds.

    `REQUEST_UNITS` and `WORK_UNITS` list the possible units.
    """

    name: Annotated[str, stated(pattern="^[A-Za-z0-9_]{1,32}$")]
    """The name of the limit in `RateLimit-Policy`: letters, digits and `_`."""
    unit: Annotated[str, stated(enum=sorted(REQUEST_UNITS + WORK_UNITS))]
    """What the limit counts."""
    capacity: Annotated[int, unit("units"), stated(minimum=1)]
    """The number of units in a full bucket. For a quota, the number of units for one period."""
    window: Annotated[float, SECONDS, stated(minimum=0)] = 0.0
    """Seconds in which an empty bucket refills. Use 0 for a quota and for `concurrent`. A unit of
    `concurrent` comes back when a computation ends."""
    period: Annotated[str, stated(enum=["", *PERIODS])] = ""
    """A period makes the rule a quota: the bucket is full again at the beginning of each period
    (UTC)."""
    model: str = ""
    """The limit applies only to requests for this model. If it is empty, the limit applies to all
    models."""
    shadow: bool = False
    """Whether the rule is in shadow mode: it admits requests that it would otherwise refuse, and
    counts them."""

    @property
    def limit(self) -> int:
        """The most units that the rule admits at once, in all regions together."""
        return self.capacity


# `gc=False`: there may be a million principals. They are in no reference cycles, so the garbage
# collector can skip them.
class Principal(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """Identifies a caller: an API key of a tenant, the key's models, and the limits of both."""

    tenant: TenantId
    key: KeyId
    tenant_rules: tuple[Rule, ...] = ()
    key_rules: tuple[Rule, ...] = ()
    models: frozenset[str] | None = None
    """The models that the key may call. `None` means all models."""
    expires: int | None = None
    """When the key expires, in nanoseconds since 1970."""
    origins: frozenset[str] | None = None
    """The origins whose web pages may use the key. `None` means any client."""
    routes: frozenset[str] | None = None
    """The paths that the key may use. `/*` at the end of a path includes all paths below it. `None`
    means all paths."""
    exhausted_until: int | None = None
    """Until when requests are refused because the tenant's budget is used up, in nanoseconds since
    1970. `None` means that requests are not refused."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a configured backend, and its position in the order of preference.

    If an endpoint has a `dns` name and its id contains no address, the endpoint stands for all
    backends to which the name resolves.
    """

    backend: BackendId
    region: RegionName
    url: str
    weight: float = 1.0
    overflow: bool = False
    server_name: str = ""
    """The name in the backend's certificate. If it is empty, the host of `url` is the name."""
    dns: str = ""
    """The DNS name and port that were resolved to the backend's address."""
    models: tuple[str, ...] = ()
    """Patterns of the names of the models that the backend serves. If there are none, the backend's
    own setting decides."""

    @property
    def entry(self) -> str:
        """The backend's id in the configuration document. The id of a DNS entry has no address."""
        return self.backend.partition("@")[0]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a served model, and names the regions that serve it."""

    info: ModelInfo
    regions: tuple[RegionName, ...]


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request's items and parameters in msgpack.

    The parameters apply to all items. The encoding is canonical: equal values have equal bytes.
    """

    task: Task
    model: ModelName
    parameters: bytes
    items: tuple[bytes, ...]
    continue_on_error: bool = False
    truncate: bool = True
    """Whether texts may be truncated. It is not a part of the cache key, because it does not affect
    the result of a text that is not truncated."""


class Source(StrEnum):
    """Says where an item's result came from, or that the item failed."""

    HIT = "hit"
    COLLAPSED = "collapsed"
    COMPUTED = "computed"
    FAILED = "failed"


_BY_CODE = {
    e.code: e for e in (DeadlineExceeded, Overloaded, InternalError, RateLimited, ModelNotFound)
}
_BY_STATUS = {e.status: e for e in (UpstreamUnavailable, InvalidRequest, PayloadTooLarge)}


class ItemFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Explains why an item failed.

    If one failed item makes the whole request fail, `status` is the status of the response.
    """

    status: int
    code: str
    detail: str
    retryable: bool = False
    retry_after: float | None = None
    is_overload: bool = False
    """Whether the item had no time left because backends were busy with other items.

    The item's request is then refused because of overload. If another request has an equal item and
    was coalesced with this request, the other request tries again if its own deadline allows.
    """

    @classmethod
    def of(cls, error: GatewayError) -> Self:
        """Return the failure that describes `error` for an item."""
        return msgspec.convert(error, cls, from_attributes=True)

    def error(self, index: int) -> GatewayError:
        """Return the error of a request that fails because of its `index`-th item.

        The code determines the class of the error. If the code is unknown, the status determines
        the class. Backends choose the code and the status.
        """
        if self.status == InvalidItem.status:
            return InvalidItem(f"Item {index}: {self.detail}", index=index, item_code=self.code)
        kind = _BY_CODE.get(self.code) or _BY_STATUS.get(self.status) or UpstreamFailed
        if self.is_overload:
            kind = Overloaded
        retry_after = self.retry_after
        if kind.retryable and retry_after is None:
            retry_after = 1.0
        return kind(self.detail, retry_after=retry_after)


class Stale(StrEnum):
    """Says why an expired result was used: a refresh is in progress, or no backend responded."""

    NO = ""
    REVALIDATING = "stale"
    ON_ERROR = "stale-if-error"


class ItemOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an item's JSON `result`, or its `failure`.

    `age` is the time in seconds since the result was cached, or 0 if it was not cached.
    """

    source: Source
    result: bytes = b""
    failure: ItemFailure | None = None
    rows: int = 0
    tokens: int = 0
    known_rows: int = 0
    """The number of rows of a computed item that were not run, because they were cached or already
    in flight."""
    input_tokens: int = 0
    """The number of tokens of all rows of the item, whether it was computed, coalesced or
    cached."""
    truncated_from: int = 0
    """If texts were truncated, the number of tokens of the longest one; otherwise 0."""
    age: float = 0.0
    tier: str = ""
    """The cache tier of a hit: `memory` or `redis`."""
    stale: Stale = Stale.NO
    revision: str = ""
    """The revision of a stale result. It is empty for other results, which are of the request's
    revision."""
    arm: str = ""
    """The number of the revision that computed the result, if the model has a traffic split or a
    shadow."""
    shadow: str = ""
    """The number of the shadow revision that got a copy of the item."""
    is_partial: bool = False
    """Whether a part of the item failed, so that the result is not stored."""
    region: RegionName = RegionName("")
    """The region of the backend that answered, or that was asked last. It is empty for cached
    results."""


class Criticality(StrEnum):
    """Ranks requests.

    Under overload, `sheddable` requests are refused first, and `critical` last.
    """

    CRITICAL = "critical"
    DEFAULT = "default"
    SHEDDABLE = "sheddable"

    def outranks(self, other: "Criticality") -> bool:
        """Return whether requests of this rank are refused later than requests of rank `other`."""
        order = tuple(Criticality)
        return order.index(self) < order.index(other)


class CacheDirectives(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the directives of the caller's `Cache-Control`. Ages are in seconds."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    max_stale: float | None = None
    """The caller accepts results that expired up to this many seconds ago. The number is infinite
    if the directive has no value."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request's caller, deadline (on the event loop's clock) and cache directives."""

    principal: Principal
    deadline: float
    directives: CacheDirectives = CacheDirectives()
    traceparent: str = ""
    criticality: Criticality = Criticality.DEFAULT


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the outcomes of a request's items, in the order of the items."""

    model: ServedModel
    outcomes: list[ItemOutcome]
    is_cacheable: bool = True
    """Whether the configuration allows the model's results to be cached."""


class EventField(msgspec.Struct, frozen=True, kw_only=True):
    """Says that the ledger has a column for a field of usage events, and who may see the field.

    Usage with different values of the field is not added up. `gateway.ledger.usage_fields` reads
    these declarations, and the ledger's columns follow from them.
    """

    is_discarded: bool = False
    """Whether the roll-up of past hours discards the value, as it discards request ids. Until then,
    an event that has a value has a row of its own."""
    is_public: bool = False
    """Whether tenants may see the field. Operators may see all fields."""
    length: int = 0
    """The most characters of a value. 0 means any number."""
    since: int = 0
    """The version of the ledger's schema that adds the column, or 0 for the first version. Rows of
    older programs have the field's default value."""


class EventUnit(msgspec.Struct, frozen=True, kw_only=True):
    """Says which version of the ledger's schema adds the columns of a number of `RequestUsage`.

    The columns, their migration and the sums follow from it. The number must have the default 0,
    which events and rows of older programs have.
    """

    since: int


class RequestUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request used, as it is billed. The numbers of several requests add up."""

    # A number that is added to these is declared with `EventUnit`.

    items: int
    """All items."""
    hit: int
    """Items that were answered from the result cache."""
    collapsed: int
    """Coalesced items: an equal item was already in flight. They cost as much as hits."""
    computed: int
    """Items that were computed."""
    failed: int
    """Failed items. They are not billed."""
    rows: int
    """Rows that the model ran for the computed items."""
    tokens: int
    """Tokens in the rows that the model ran."""


class Usage(RequestUsage, frozen=True, kw_only=True):
    """What a request used. The response and the bill have the same numbers."""

    # A number with the name of a field of `ItemOutcome` is the sum over the items.

    # Not in `RequestUsage`, because the ledger does not have this number.
    truncated: int = 0
    """Items whose texts were truncated."""

    @classmethod
    def of(cls, **numbers: int) -> Self:
        """Return usage with these numbers. All other numbers are 0.

        `items` is the sum of the items of each `Source`.
        """
        items = sum([numbers.get(source, 0) for source in _SOURCES])
        return cls(**_NO_USAGE | numbers, items=items)


_SOURCES = tuple(source.value for source in Source)
_NO_USAGE = dict.fromkeys(set(Usage.__struct_fields__) - {"items"}, 0)


class RevisionUsage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Counts the items of a request that one revision of the model computed.

    `arm` is the number of this revision. `shadow` is the number of the revision that got copies of
    the items, or empty if there was none. New fields must come at the end, because the struct is
    encoded as an array.
    """

    arm: str
    shadow: str = ""
    hit: int = 0
    collapsed: int = 0
    computed: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0


class RequestEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Records an answered request for billing and the request log.

    The event contains no input text. The ledger (the database of usage) counts each id once, even
    if the event arrives several times.

    If `count` is more than 1, the event stands for `count` requests. The ids of these requests are
    consecutive and begin with `id`. All other fields hold for each of the requests. For example,
    `usage` is the usage of one request.

    New fields must come at the end, because the event is encoded as an array.
    """

    id: RequestId
    """The `X-Request-Id` of the response."""
    time: int
    """When the request was answered, in nanoseconds since 1970."""
    tenant: Annotated[TenantId, EventField(length=64)]
    """The id of the tenant that sent the request."""
    key: Annotated[KeyId, EventField(is_public=True, length=64)]
    """The id of the request's API key."""
    model: Annotated[str, EventField(is_public=True)]
    """The model. It is empty if the request failed before its model was known."""
    task: Annotated[str, EventField(is_public=True)]
    """The task of the request."""
    status: Annotated[int, EventField(is_public=True)]
    """The HTTP status of the response."""
    usage: Usage
    duration: float
    """Seconds until the response was ready."""
    region: Annotated[str, EventField(is_public=True)] = ""
    """The gateway region that answered."""
    revision: Annotated[str, EventField(is_public=True)] = ""
    """The revision of the model that answered."""
    code: Annotated[str, EventField(is_public=True)] = ""
    """The code of the error, if `status` is the status of an error."""
    count: int = 1
    arms: tuple[RevisionUsage, ...] = ()
    """The usage of each revision, if the model has a traffic split or a shadow revision."""
    batch: Annotated[int, EventField(since=5)] = 0
    """1 if the request is a line of a batch job, otherwise 0. Batch jobs have separate prices."""
    client_id: Annotated[
        str, EventField(is_public=True, is_discarded=True, length=128, since=11)
    ] = ""
    """The caller's own id of the request: its `X-Client-Request-Id`."""
    backend_region: Annotated[str, EventField(is_public=True, since=11)] = ""
    """The region of the backends that computed the request's items, or failed to. Several regions
    are separated by commas. It is empty if no backend was asked, for example because all items were
    cached. It may be empty if the request ended before a backend answered."""
    proxy_id: str = ""
    """The `X-Request-Id` that the request had, if it has no `client_id`. Many proxies give one to
    every request, so only the request log has it, as `client_id`."""
