"""Defines values that travel between the gateway's modules. They hold no behaviour."""

from enum import StrEnum
from math import inf
from typing import NewType, Self

import msgspec
from typing_extensions import override

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


class Rule(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    cache_hash=True,
    omit_defaults=True,
):
    """A token bucket: `capacity` units, refilled at `capacity / window` units a second.

    `name` is what `RateLimit-Policy` calls it, and is a word of letters, digits and `_`.
    `unit` says what one unit is: see `REQUEST_UNITS` and `WORK_UNITS`.
    """

    name: str
    unit: str
    capacity: int
    window: float = 0.0
    """Seconds; 0 for a quota, and for `concurrent`, whose units come back as work ends."""
    period: str = ""
    """`month`: a quota, whose bucket is filled at the month's beginning (UTC) and not before."""
    model: str = ""
    """The only model whose requests are charged; empty is any."""
    shadow: bool = False
    """Watched and counted, but refuses nothing."""

    @property
    def limit(self) -> int:
        """The most that the rule admits at once, over all regions."""
        return self.capacity


class RegionalRule(Rule, frozen=True, kw_only=True, cache_hash=True):
    """Limits a region to its part of a rule: `capacity` units of `full_limit`."""

    full_limit: int
    unknown_level: int
    """The level assumed of a bucket without a record: below `capacity` after a share has grown."""
    grown_for: float = inf
    """Seconds since the share grew. A bucket unused for longer holds at most `unknown_level`."""

    @property
    @override
    def limit(self) -> int:
        """The most that the rule admits at once, over all regions."""
        return self.full_limit


CONCURRENT = "concurrent"
REQUEST_UNITS = ("requests", "items")
"""Charged when a request is admitted, wherever its answers come from."""
WORK_UNITS = ("rows", "tokens", CONCURRENT)
"""Charged for what must be computed: hits and joined work cost none."""


class Principal(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Who is calling: a key of a tenant, what it may use, and the limits on both."""

    tenant: TenantId
    key: KeyId
    tenant_rules: tuple[Rule, ...] = ()
    key_rules: tuple[Rule, ...] = ()
    models: frozenset[str] | None = None
    """Models the key may call; `None` is all of them."""
    expires: int | None = None
    """When the key ends, in nanoseconds since the epoch."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as configured: where it is, and its place in the order of use.

    One with a `dns` and no address in its id stands for all the backends that the name leads to.
    """

    backend: BackendId
    region: RegionName
    url: str
    weight: float = 1.0
    overflow: bool = False
    server_name: str = ""
    """The name its certificate must hold; empty is the host of `url`."""
    dns: str = ""
    """The name and port by which it was found."""

    @property
    def entry(self) -> str:
        """The id that the document has for it: that of the name, where it was found by one."""
        return self.backend.partition("@")[0]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that some backend serves: what it says of itself, and the regions that have it."""

    info: ModelInfo
    regions: tuple[RegionName, ...]


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request taken apart: what all items share (`parameters`, msgpack) and the items (msgpack).

    Both encodings are canonical: equal meaning, equal bytes.
    """

    task: Task
    model: ModelName
    parameters: bytes
    items: tuple[bytes, ...]
    continue_on_error: bool = False
    truncate: bool = True
    """Whether texts may be cut. No part of the key: an answer to a text that fits is the same."""


class Source(StrEnum):
    """How an item ended; `usage` counts each."""

    HIT = "hit"
    COLLAPSED = "collapsed"
    COMPUTED = "computed"
    FAILED = "failed"


_ERRORS_BY_CODE: dict[str, type[GatewayError]] = {
    kind.code: kind for kind in (DeadlineExceeded, Overloaded, InternalError, RateLimited)
}
_ERRORS_BY_STATUS: dict[int, type[GatewayError]] = {
    kind.status: kind for kind in (UpstreamUnavailable, InvalidRequest, PayloadTooLarge)
}


class ItemFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item has no answer. `status` is that of the request when items may not fail alone."""

    status: int
    code: str
    detail: str
    retryable: bool = False
    retry_after: float | None = None

    @classmethod
    def of(cls, error: GatewayError) -> Self:
        """Return the failure of an item that `error` prevented."""
        return cls(
            status=error.status,
            code=error.code,
            detail=error.detail,
            retryable=error.retryable,
            retry_after=error.retry_after,
        )

    def error(self, index: int) -> GatewayError:
        """Return the error of a request that fails because of this item, its `index`-th.

        The class is chosen by the code, else by the status, since a backend chooses both.
        """
        if self.status == InvalidItem.status:
            return InvalidItem(f"Item {index}: {self.detail}", index=index, item_code=self.code)
        kind = _ERRORS_BY_CODE.get(self.code) or _ERRORS_BY_STATUS.get(self.status, UpstreamFailed)
        retry_after = self.retry_after
        if kind.retryable and retry_after is None:
            retry_after = 1.0
        return kind(self.detail, retry_after=retry_after)


class Stale(StrEnum):
    """Why an answer from before was given: it is being refreshed, or no backend answered."""

    NO = ""
    REVALIDATING = "stale"
    ON_ERROR = "stale-if-error"


class ItemOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An item's end: JSON `result` or `failure`; `age` in seconds where it came from the cache."""

    source: Source
    result: bytes = b""
    failure: ItemFailure | None = None
    rows: int = 0
    tokens: int = 0
    known_rows: int = 0
    """Rows of a computed item that cost nothing: seen before, or joined to one in flight."""
    truncated_from: int = 0
    """How many tokens the longest of its texts has that the model cut; 0 where it cut none."""
    age: float = 0.0
    tier: str = ""
    """`memory` or `redis` for a hit."""
    stale: Stale = Stale.NO
    revision: str = ""
    """What gave a stale answer; else it is the request's."""


class Criticality(StrEnum):
    """What to give up first when there is more to do than can be done."""

    CRITICAL = "critical"
    DEFAULT = "default"
    SHEDDABLE = "sheddable"

    def outranks(self, other: "Criticality") -> bool:
        """Tell whether it is given up after `other`."""
        order = tuple(Criticality)
        return order.index(self) < order.index(other)


class CacheDirectives(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller's `Cache-Control` asks for; ages in seconds."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    max_stale: float | None = None
    """Accepts answers that are out of date for so long; infinite where no time was said."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, until when (loop time), and how the cache may be used."""

    principal: Principal
    deadline: float
    directives: CacheDirectives = CacheDirectives()
    traceparent: str = ""
    criticality: Criticality = Criticality.DEFAULT


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome for each item of the request, in its order."""

    model: ServedModel
    outcomes: list[ItemOutcome]
    is_cacheable: bool = True
    """Whether the configuration lets answers of the model be kept."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request used, as answered and as billed."""

    items: int
    """All items of the request."""
    hit: int
    """Items answered from the result cache."""
    collapsed: int
    """Items that joined equal work under way; priced as hits."""
    computed: int
    """Items computed for this request."""
    failed: int
    """Items that were not answered, and are not billed."""
    rows: int
    """Rows that the model ran for the computed items."""
    tokens: int
    """Tokens of those rows."""
    truncated: int = 0
    """Items that were answered by a part of their text."""


class RequestEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request that was answered, as billing and the request log read it. Holds no input text.

    `id` is the `X-Request-Id` of the response and counts once in the ledger, however often it
    arrives. `time` is nanoseconds since the epoch, `duration` seconds. New fields go last.

    Where `count` is more than 1, this is a run: as many requests that differ by their ids only,
    which follow on from `id`. `usage` is that of each.
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
    """The error's code where `status` is one."""
    count: int = 1
