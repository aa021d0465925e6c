"""Defines values that travel between the gateway's modules."""

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
"""The number of hexadecimal digits at the end of a request's id, which count up."""


class Rule(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    cache_hash=True,
    omit_defaults=True,
):
    """Limits a rate by a token bucket: `capacity` units, refilled at `capacity / window` a second.

    `name` appears in `RateLimit-Policy`; it has letters, digits and `_`. For `unit` see
    `REQUEST_UNITS` and `WORK_UNITS`.
    """

    name: str
    unit: str
    capacity: int
    window: float = 0.0
    """Seconds; 0 for a quota, and for `concurrent`, whose units come back when work ends."""
    period: str = ""
    """`month`: a quota, whose bucket is refilled at the beginning of each month (UTC)."""
    model: str = ""
    """The only model whose requests are charged; empty is all."""
    shadow: bool = False
    """Counts what it would refuse, and refuses nothing."""

    @property
    def limit(self) -> int:
        """The most that the rule admits at once, over all regions."""
        return self.capacity


CONCURRENT = "concurrent"
REQUEST_UNITS = ("requests", "items")
"""Charged when a request is admitted, also for cache hits."""
WORK_UNITS = ("rows", "tokens", CONCURRENT)
"""Charged for work that must be computed: hits and collapsed items cost none."""


# There may be a million, which the garbage collector need not visit: they cannot be in a cycle.
class Principal(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """Identifies a caller: a key of a tenant, the models it may call, and the limits on both."""

    tenant: TenantId
    key: KeyId
    tenant_rules: tuple[Rule, ...] = ()
    key_rules: tuple[Rule, ...] = ()
    models: frozenset[str] | None = None
    """Models that the key may call; `None` is all."""
    expires: int | None = None
    """When the key expires, in nanoseconds since the epoch."""
    origins: frozenset[str] | None = None
    """Origins from whose pages alone the key may be used; `None` is no such bound."""
    routes: frozenset[str] | None = None
    """Paths that the key may be used for, with all below one that ends in `/*`; `None` is all."""
    exhausted_until: int | None = None
    """Until when requests are refused, as the tenant's budget is used up, in nanoseconds."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Locates a backend as configured, and gives its place in the order of use.

    With a `dns` and no address in its id, it stands for all backends that the name resolves to.
    """

    backend: BackendId
    region: RegionName
    url: str
    weight: float = 1.0
    overflow: bool = False
    server_name: str = ""
    """The name that its certificate must have; empty is the host of `url`."""
    dns: str = ""
    """The name and port from which it was resolved."""
    models: tuple[str, ...] = ()
    """Patterns of the models that it is assigned; empty where its own setting decides."""

    @property
    def entry(self) -> str:
        """Its id in the document: that of the DNS name if it was resolved from one."""
        return self.backend.partition("@")[0]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that backends serve, and names the regions that have it."""

    info: ModelInfo
    regions: tuple[RegionName, ...]


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the parameters of a request, which apply to all items, and the items, all as msgpack.

    Both encodings are canonical: equal values have equal bytes.
    """

    task: Task
    model: ModelName
    parameters: bytes
    items: tuple[bytes, ...]
    continue_on_error: bool = False
    truncate: bool = True
    """Texts may be truncated. Not part of the key: the answer to a text that fits is the same."""


class Source(StrEnum):
    """Names the outcomes of items, which `usage` counts."""

    HIT = "hit"
    COLLAPSED = "collapsed"
    COMPUTED = "computed"
    FAILED = "failed"


_BY_CODE = {e.code: e for e in (DeadlineExceeded, Overloaded, InternalError, RateLimited)}
_BY_STATUS = {e.status: e for e in (UpstreamUnavailable, InvalidRequest, PayloadTooLarge)}


class ItemFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Explains why an item has no answer; `status` is the request's if no item may fail alone."""

    status: int
    code: str
    detail: str
    retryable: bool = False
    retry_after: float | None = None
    is_overload: bool = False
    """Its time ran out while backends did the work of others: its request is refused as overload,
    though who joined the item may have more time, and tries anew."""

    @classmethod
    def of(cls, error: GatewayError) -> Self:
        """Return the failure of an item that `error` prevented."""
        return msgspec.convert(error, cls, from_attributes=True)

    def error(self, index: int) -> GatewayError:
        """Return the error of a request that fails because of this item, its `index`-th.

        The class is chosen by the code, else by the status, since a backend chooses both.
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
    """Names the reasons for a stale answer: it is being refreshed, or no backend answered."""

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
    """Rows of a computed item that were not run: in the row cache, or joined to one in flight."""
    input_tokens: int = 0
    """Tokens of all rows of the item, whether computed, known or cached."""
    truncated_from: int = 0
    """The tokens of the longest text that the model truncated; 0 if it truncated none."""
    age: float = 0.0
    tier: str = ""
    """`memory` or `redis` for a hit."""
    stale: Stale = Stale.NO
    revision: str = ""
    """The revision of a stale answer; empty for others, which have the request's."""
    arm: str = ""
    """The number of the revision that answered, where several share the items or one has a
    shadow."""
    shadow: str = ""
    """The number of the revision that the item was mirrored to."""


class Criticality(StrEnum):
    """Ranks requests; under overload `sheddable` ones are refused first."""

    CRITICAL = "critical"
    DEFAULT = "default"
    SHEDDABLE = "sheddable"

    def outranks(self, other: "Criticality") -> bool:
        """Tell whether it is refused after `other`."""
        order = tuple(Criticality)
        return order.index(self) < order.index(other)


class CacheDirectives(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the directives of the caller's `Cache-Control`; ages are in seconds."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    max_stale: float | None = None
    """Accepts answers stale for so long; infinite if the directive has no value."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the caller of a request, its deadline (loop time) and its cache directives."""

    principal: Principal
    deadline: float
    directives: CacheDirectives = CacheDirectives()
    traceparent: str = ""
    criticality: Criticality = Criticality.DEFAULT


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an outcome for each item of the request, in its order."""

    model: ServedModel
    outcomes: list[ItemOutcome]
    is_cacheable: bool = True
    """True if the configuration allows answers of the model to be cached."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts what a request used, as answered and as billed."""

    items: int
    """All items of the request."""
    hit: int
    """Items answered from the result cache."""
    collapsed: int
    """Items that joined equal work in flight; priced as hits."""
    computed: int
    """Items computed for this request."""
    failed: int
    """Items without an answer, which are not billed."""
    rows: int
    """Rows that the model ran for the computed items."""
    tokens: int
    """Tokens of those rows."""
    truncated: int = 0
    """Items whose texts were truncated."""


class ArmUsage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Counts the items of a request that one revision of its model answered.

    `shadow` is the revision that they were mirrored to, empty for those that were not. New fields
    go last.
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
    """Records an answered request for billing and the request log. Holds no input text.

    `id` is the `X-Request-Id` of the response; the ledger counts it once, however often it arrives.
    `time` is nanoseconds since the epoch, `duration` seconds. New fields go last.

    If `count` is more than 1, this is a run of as many requests, which differ by their ids only;
    these are consecutive from `id`. `usage` is that of each.
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
    arms: tuple[ArmUsage, ...] = ()
    """Its items by the revision that answered, where several share the model's items or one has a
    shadow."""
    batch: int = 0
    """1 if the request is a line of a batch, which has prices of its own."""
    client_id: str = ""
    """What the caller named the request by."""
