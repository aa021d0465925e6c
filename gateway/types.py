"""Defines values that several packages of the gateway share."""

from enum import StrEnum
from typing import NewType, Self

import msgspec

from backends.protocol import ModelInfo, Task
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidItem,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
)

TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
ModelName = NewType("ModelName", str)
RegionName = NewType("RegionName", str)
BackendId = NewType("BackendId", str)
RequestId = NewType("RequestId", str)
ID_DIGITS = 10
"""The number of hexadecimal digits at the end of a request id that form a counter."""


class Rule(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    cache_hash=True,
    omit_defaults=True,
):
    """Limits a rate with a token bucket of `capacity` units that refills in `window` seconds.

    `name` appears in the header `RateLimit-Policy`, and has letters, digits and `_`. For `unit`,
    see `REQUEST_UNITS` and `WORK_UNITS`.
    """

    name: str
    """The name of the limit in `RateLimit-Policy`: letters, digits and `_`."""
    unit: str
    """What the limit counts: `requests`, `items`, `rows`, `tokens` or `concurrent`."""
    capacity: int
    """The size of the bucket; for a quota, the units for one period."""
    window: float = 0.0
    """Seconds in which an empty bucket refills. Use 0 for a quota, and for `concurrent`: its units
    return when a computation ends."""
    period: str = ""
    """With `month`, the rule is a quota: its bucket is full again at the beginning of each month
    (UTC)."""
    model: str = ""
    """The limit applies to requests for this model only; empty: for all models."""
    shadow: bool = False
    """Whether the rule only counts the requests that it would refuse, and admits them."""

    @property
    def limit(self) -> int:
        """The most units that the rule admits at once, over all regions."""
        return self.capacity


CONCURRENT = "concurrent"
REQUEST_UNITS = ("requests", "items")
"""Units charged when a request is admitted, including cache hits."""
WORK_UNITS = ("rows", "tokens", CONCURRENT)
"""Units charged for computation. Hits and coalesced items cost none."""


# There may be a million principals. They are in no cycles, so the garbage collector can skip them.
class Principal(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """Identifies a caller: an API key of a tenant, its models, and the limits on key and tenant."""

    tenant: TenantId
    key: KeyId
    tenant_rules: tuple[Rule, ...] = ()
    key_rules: tuple[Rule, ...] = ()
    models: frozenset[str] | None = None
    """Models that the key may call; `None`: all."""
    expires: int | None = None
    """When the key expires, in nanoseconds since 1970."""
    origins: frozenset[str] | None = None
    """Origins whose pages may use the key; `None`: any."""
    routes: frozenset[str] | None = None
    """Paths that the key may use; `/*` at the end of a path includes all paths below; `None`:
    all."""
    exhausted_until: int | None = None
    """Until when requests are refused because the tenant's budget is used up, in nanoseconds
    since 1970."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a configured backend, and its place in the order of use.

    An endpoint with `dns` whose id has no address stands for all backends of the DNS name.
    """

    backend: BackendId
    region: RegionName
    url: str
    weight: float = 1.0
    overflow: bool = False
    server_name: str = ""
    """The name in the backend's certificate; empty: the host of `url`."""
    dns: str = ""
    """The DNS name and port from which the backend was resolved."""
    models: tuple[str, ...] = ()
    """Patterns of the backend's models; empty: the backend's own setting decides."""

    @property
    def entry(self) -> str:
        """The backend's id in the document, without the address of a resolved DNS name."""
        return self.backend.partition("@")[0]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a served model, and names the regions that serve it."""

    info: ModelInfo
    regions: tuple[RegionName, ...]


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request's items, and the parameters for all items, in msgpack.

    Both encodings are canonical: equal values have equal bytes.
    """

    task: Task
    model: ModelName
    parameters: bytes
    items: tuple[bytes, ...]
    continue_on_error: bool = False
    truncate: bool = True
    """Whether texts may be truncated. The cache key does not contain it: a text that is not
    truncated has the same result with and without it."""


class Source(StrEnum):
    """The outcomes of items that `usage` counts."""

    HIT = "hit"
    COLLAPSED = "collapsed"
    COMPUTED = "computed"
    FAILED = "failed"


_BY_CODE = {e.code: e for e in (DeadlineExceeded, Overloaded, InternalError, RateLimited)}
_BY_STATUS = {e.status: e for e in (UpstreamUnavailable, InvalidRequest, PayloadTooLarge)}


class ItemFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Explains why an item failed.

    `status` is the status of the response if one failed item fails the whole request.
    """

    status: int
    code: str
    detail: str
    retryable: bool = False
    retry_after: float | None = None
    is_overload: bool = False
    """Whether the item's time ran out while backends computed other items.

    Its request is then refused as overload. Another request that was coalesced with the item may
    have more time, and tries again.
    """

    @classmethod
    def of(cls, error: GatewayError) -> Self:
        """Return the failure of an item because of `error`."""
        return msgspec.convert(error, cls, from_attributes=True)

    def error(self, index: int) -> GatewayError:
        """Return the error of a request that fails because of its `index`-th item.

        The code determines the class, or else the status. Backends choose both.
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
    """The reasons for a stale result: it is being refreshed, or no backend responded."""

    NO = ""
    REVALIDATING = "stale"
    ON_ERROR = "stale-if-error"


class ItemOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an item's JSON `result` or its `failure`; `age` is in seconds, 0 if not cached."""

    source: Source
    result: bytes = b""
    failure: ItemFailure | None = None
    rows: int = 0
    tokens: int = 0
    known_rows: int = 0
    """Rows of a computed item that were not run, because they were cached or already in flight."""
    input_tokens: int = 0
    """Tokens of all rows of the item, whether computed, coalesced or cached."""
    truncated_from: int = 0
    """The number of tokens of the longest truncated text; 0 if none was truncated."""
    age: float = 0.0
    tier: str = ""
    """`memory` or `redis` for a hit."""
    stale: Stale = Stale.NO
    revision: str = ""
    """The revision of a stale result; empty for other results, which have the request's
    revision."""
    arm: str = ""
    """The number of the revision that computed the result, if the model has a traffic split or a
    shadow."""
    shadow: str = ""
    """The number of the revision that the item was mirrored to."""


class Criticality(StrEnum):
    """Ranks requests. Under overload, `sheddable` requests are refused first."""

    CRITICAL = "critical"
    DEFAULT = "default"
    SHEDDABLE = "sheddable"

    def outranks(self, other: "Criticality") -> bool:
        """Return whether requests of this rank are refused later than requests of `other`."""
        order = tuple(Criticality)
        return order.index(self) < order.index(other)


class CacheDirectives(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the directives of the caller's `Cache-Control`; ages are in seconds."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    max_stale: float | None = None
    """Accepts results that have been stale for up to this time; infinite if the directive has no
    value."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the caller of a request, its deadline (loop time) and its cache directives."""

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


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts what a request used, as in the response and on the bill."""

    items: int
    """All items of the request."""
    hit: int
    """Items answered from the result cache."""
    collapsed: int
    """Coalesced items, which joined an equal item in flight; priced as hits."""
    computed: int
    """Items computed for this request."""
    failed: int
    """Failed items, which are not billed."""
    rows: int
    """Rows that the model ran for the computed items."""
    tokens: int
    """Tokens of the rows that the model ran."""
    truncated: int = 0
    """Items whose texts were truncated."""


class RevisionUsage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Counts the items of a request that one revision of its model computed.

    `shadow` is the revision that got copies of the items; empty if none did. Append new fields at
    the end.
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
    """Records an answered request for billing and the request log. Contains no input text.

    `id` is the response's `X-Request-Id`. The ledger counts each id once, however often it arrives.
    `time` is in nanoseconds since 1970, `duration` in seconds. Append new fields at the end.

    If `count` is more than 1, the event stands for a run of that many requests. They have
    consecutive ids from `id` on and are equal otherwise. `usage` is the usage of each.
    """

    id: RequestId
    time: int
    tenant: TenantId
    key: KeyId
    model: str
    task: str
    status: int
    usage: Usage
    duration: float
    region: str = ""
    revision: str = ""
    code: str = ""
    """The error's code if `status` is an error."""
    count: int = 1
    arms: tuple[RevisionUsage, ...] = ()
    """The items by revision, if the model has a traffic split or a shadow."""
    batch: int = 0
    """1 if the request is a line of a batch job, which has separate prices."""
    client_id: str = ""
    """The caller's name for the request."""
