"""Defines the schema of the reloadable configuration document.

`gateway.config.load` reads the document from YAML. Every field has a default that suits a first
run, so a document needs only the values that differ from the defaults. A reload applies all fields
to running workers.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicegate.gateway.types import Rule
from sluicegate.wire.guards import GuardConfig, RouterConfig
from sluicegate.wire.settings import (
    BYTES,
    SECONDS,
    Bytes,
    Count,
    PositiveBytes,
    PositiveCount,
    PositiveSeconds,
    Seconds,
    Share,
    takes_effect,
    unit,
)

# A price of a million for an item is a mistake, and totals must fit an invoice.
Price = Annotated[
    int,
    unit("10^-9 of the currency"),
    Meta(ge=0, le=10**15, extra={"why": "a unit costs at most a million of the currency"}),
]
_GRADUALLY = takes_effect(
    "step by step, while the worker answers requests. Results that fit into the new size are kept"
)
_IMMEDIATELY = takes_effect(
    "immediately, even in running requests. Stored results keep their lifetime"
)
_NEXT_PROBE = takes_effect("with the next probe or DNS lookup")


class BackendConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backend process, or all backends to which a DNS name resolves."""

    id: str
    """The name of the backend, unique in the document."""
    url: str = ""
    """The address of the backend: `http://host:port`, or `https://host:port` for TLS."""
    dns: str = ""
    """A DNS name and a port, as `name:port`, instead of `url`. Each address of the name is a
    backend."""
    tls: bool = False
    """Whether the backends of the name in `dns` use TLS."""
    weight: Annotated[float, unit("relative"), Meta(gt=0)] = 1.0
    """How many items the backend gets in proportion to other backends."""
    server_name: str = ""
    """The name in the backend's certificate. The default is the host in `url` or `dns`."""


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends of a region that serve the same models."""

    name: str = "default"
    """The name of the pool, unique in its region."""
    overflow: bool = False
    """Whether the pool gets only items that would wait too long in every other pool, as
    `routing.overflow_after` defines."""
    models: tuple[str, ...] = ()
    """Names, or patterns such as `toxic-*`, of the models that the pool's backends serve. If the
    list is empty, `SLUICEGATE_BACKEND_SERVES` of each backend decides."""
    cost_per_hour: Annotated[float, unit("currency an hour"), Meta(ge=0)] = 0.0
    """The cost of one backend for an hour, in the currency of the prices. The console computes the
    margin with this cost. 0 means that the cost is unknown."""
    backends: tuple[BackendConfig, ...] = ()
    """The backends of the pool."""


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A region. The first region of the document is the preferred one."""

    name: str
    """The name of the region, unique in the document."""
    pools: tuple[PoolConfig, ...] = ()
    """The pools of the region."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a model. Backends report its other properties."""

    scope: Literal["tenant", "shared"] = "tenant"
    """Who may get a cached result: the `tenant` that paid for it, or everybody (`shared`)."""
    cache_ttl: Seconds = 86_400.0
    """Seconds for which a result is cached. With 0, results are not cached. If the value is
    lowered, the new value also applies to results that are already cached."""
    stale_while_revalidate: Seconds = 0.0
    """Seconds for which the gateway still serves a stale result while it computes a new one. A
    result is stale if it has expired or is from the previous revision."""
    stale_if_error: Seconds = 0.0
    """Seconds for which the gateway serves a stale result if no backend responds. With 0, it never
    does."""
    enabled: bool = True
    """Whether customers may call the model."""
    planned: bool = False
    """Whether the gateway accepts the model's name although no backend serves the model yet."""
    limits: tuple[Rule, ...] = ()
    """Limits, for all tenants together, on what backends compute for the model. The fields are the
    same as in `limits`."""
    moderation: dict[str, str] = {}
    """For a classifier that serves `POST /v1/moderations`: the category of each label, such as
    `toxic: harassment`. `GET /v1/models` shows the labels. Labels without a category are ignored.
    If a backend serves the model, and the model does not have one of the labels, the document is
    refused."""
    moderation_threshold: Annotated[float, unit("score, 0 to 1"), Meta(ge=0)] = 0.5
    """The lowest score at which a category applies to a text."""
    token_ids: bool = False
    """Whether `POST /v1/embeddings` and TEI's `/embed` accept token ids instead of texts. Leave it
    off if LangChain calls the model without `check_embedding_ctx_length=False`. LangChain would
    then send token ids of OpenAI's vocabularies."""


class DeadlineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a request may take, in seconds."""

    default: PositiveSeconds = 10.0
    """Seconds that a request may take, unless the caller asks for another time."""
    maximum: PositiveSeconds = 60.0
    """The most seconds that `X-Request-Timeout` may ask for. A line of a batch job that is tried
    again may take longer."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result cache."""

    memory_bytes: Annotated[Bytes, _GRADUALLY] = 64 * 1024 * 1024
    """The size of the cache in the memory of each worker."""
    memory_enabled: Annotated[bool, _GRADUALLY] = True
    """Whether workers cache results in memory."""
    redis_enabled: Annotated[bool, _IMMEDIATELY] = True
    """Whether workers cache results in Redis. Otherwise, operators see no sampled decisions of
    guards."""
    redis_timeout: Annotated[PositiveSeconds, _IMMEDIATELY] = 0.015
    """Seconds that a look-up in Redis may take. A slower look-up counts as a miss. After five slow
    look-ups in a row, the worker stops using Redis. It then probes Redis once a second until Redis
    responds in time."""
    ttl_jitter: Annotated[Share, _IMMEDIATELY] = 0.1
    """Lifetimes of results are shortened at random, by at most this fraction."""
    lease: Annotated[Seconds, _IMMEDIATELY] = 0.25
    """Seconds that a worker's claim on an item lasts. The worker renews the claim while it computes
    the item. Other workers that need the item wait for the result, for at most half of the time
    that is left to their request. With 0, there are no claims."""
    refusal_ttl: Seconds = 60.0
    """Seconds for which the gateway caches the refusal of an item, if equal items would be refused
    again. It never caches `algorithm_too_slow`."""
    refreshes: Count = 64
    """The largest number of stale items that a worker refreshes at a time. It refreshes further
    stale items later."""


class RequestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the size of a request."""

    max_body_bytes: PositiveBytes = 8 * 1024 * 1024
    """The size of the largest body. A larger body gets 413. All bodies above 256 KiB in a worker
    may together take 16 times this size, divided fairly among API keys. If there is no room for a
    body, it gets 503 `overloaded`."""
    max_items: PositiveCount = 2048
    """The most items of a request. A request with more items gets 413."""
    max_values: PositiveCount = 65_536
    """The most JSON values in a body. Lists and objects count, too. A body with more values gets
    413."""
    max_template_bytes: PositiveBytes = 4096
    """The largest length of the `hypothesis_template` of `zero-shot`, in bytes. A longer one gets
    422 `expansion_too_large`."""
    max_label_bytes: PositiveBytes = 4096
    """The largest length of a label of `zero-shot` or `entities`, of a relation or of a
    description, in bytes. A longer one gets 422 `expansion_too_large`."""
    max_expanded_bytes: PositiveBytes = 64 * 1024 * 1024
    """The most bytes of text that models may read for a request. A request with more text gets 422
    `expansion_too_large`. In `zero-shot`, the text of each pair of an input and a label counts."""
    max_answer_bytes: PositiveBytes = 96 * 1024 * 1024
    """The largest size of a response. A request whose response could be larger gets 422
    `expansion_too_large`. All large requests in a worker may together take twice the sum of this
    size and `max_expanded_bytes`. A request that gets no room before its deadline gets 503
    `overloaded`."""


class CorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which web pages may read responses (CORS)."""

    origins: tuple[str, ...] = ()
    """Origins whose pages may call the API with keys of any tenant. `"*"` stands for every
    origin."""
    tenants: dict[str, tuple[str, ...]] = {}
    """Additional origins for the keys of a tenant: `{acme: ["https://app.acme.example"]}`."""
    max_age: Annotated[int, SECONDS, Meta(ge=0)] = 7_200
    """Seconds for which browsers cache the response to a preflight request."""


class IdempotencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the stored responses to requests with an `Idempotency-Key`."""

    lease: Annotated[float, SECONDS, Meta(ge=0.1)] = 5.0
    """Seconds that a request's claim on its idempotency key lasts. The worker renews the claim
    while the request runs. If the worker dies, a retry runs the request again after this time."""
    max_keys: PositiveCount = 50_000
    """The most idempotency keys that are stored for a tenant. The oldest are removed first."""
    max_bytes: Annotated[int, BYTES, Meta(ge=1024)] = 32 * 1024 * 1024
    """The most bytes of idempotency keys and responses that are stored for a tenant. If there is no
    room for a response, a retry computes it again."""


class DecisionsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampled decisions of guards, which operators see without texts."""

    texts: Annotated[
        tuple[str, ...], takes_effect("immediately. Kept texts of removed tenants are deleted")
    ] = ()
    """Tenants that agreed to show their texts: operators with the role `operator` see the first 500
    characters of sampled texts, also of blocked and redacted ones, with all that is secret or
    personal in them. Answers of models, system prompts and calls of tools are texts, too. The texts
    are in the memory of workers and in the cache Redis, until newer ones replace them or the worker
    stops. They are never in logs, events or metrics. Requests with `Cache-Control: no-store` show
    none."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default limits of tenants and API keys."""

    tenant: tuple[Rule, ...] = (
        Rule(name="minute", unit="requests", capacity=6_000, window=60.0),
        Rule(name="items", unit="items", capacity=60_000, window=60.0),
    )
    """The limits of each tenant that has no limits of its own. The default is 6,000 requests and
    60,000 items a minute."""
    key: tuple[Rule, ...] = ()
    """The limits of each key that has no limits of its own."""
    local_share: Share = 0.1
    """The fraction of each limit that a worker admits while it cannot reach Redis. A region that
    has not reached the ledger for `share_lease` seconds also admits this fraction, until it has a
    share again."""
    share_lease: Annotated[float, SECONDS, Meta(ge=5), takes_effect("within a second")] = 30.0
    """Used with several gateway regions. If a region cannot reach the ledger for this many seconds,
    the other regions get its shares of the limits. The region itself then admits the fraction
    `limits.local_share` of each limit."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How backends are selected, ejected, retried and probed. Durations are in seconds."""

    attempts: PositiveCount = 3
    """The most attempts for an item."""
    attempt_timeout: PositiveSeconds = 5.0
    """The gateway gives up an attempt after this many seconds without progress, or at the request's
    deadline if that is earlier. Work on earlier items counts as the backend's progress."""
    connect_timeout: PositiveSeconds = 0.5
    """Seconds that connecting to a backend may take. If the backend's name has several addresses,
    the gateway tries all of them in the first half of this time."""
    probe_interval: PositiveSeconds = 0.5
    """Seconds between two probes of a backend. They vary at random by up to a fifth. A worker sends
    at most 400 probes a second on average, so with many backends the interval is longer: 5 s with
    2,000 backends."""
    probe_timeout: Annotated[PositiveSeconds, _NEXT_PROBE] = 1.0
    """Seconds that a probe may take."""
    dns_interval: PositiveSeconds = 5.0
    """Approximate seconds between two look-ups of a DNS name."""
    dns_timeout: Annotated[PositiveSeconds, _NEXT_PROBE] = 2.0
    """Seconds that a DNS look-up may take."""
    eject_after: PositiveCount = 5
    """Failures in a row after which a backend is ejected."""
    eject_for: Annotated[PositiveSeconds, takes_effect("with the next ejection")] = 5.0
    """Seconds that the first ejection of a backend lasts. Further ejections in a row last
    longer."""
    eject_share: Share = 0.2
    """A backend is also ejected if this fraction of its calls has failed, even without
    `eject_after` failures in a row. The fraction is computed over the calls of about the last 5 s,
    from the first failure on. The rule applies from ten calls on."""
    max_ejected: Share = 0.5
    """The largest fraction of all backends that may be ejected at the same time. The number is
    rounded up."""
    panic_threshold: Share = 0.5
    """If less than this fraction of a model's backends is available, the gateway also uses ejected
    backends. Drained backends do not count."""
    hedge_share: Share = 0.0
    """The fraction of items that may be sent to a second backend, too. An item is sent to a second
    backend when it has waited longer than 95 % of similar items."""
    slow_start: PositiveSeconds = 5.0
    """Seconds in which the traffic of a backend that has recovered rises to its full share."""
    spill_after: PositiveSeconds = 0.05
    """If an item is predicted to wait longer than this many seconds in the preferred region, it
    goes to another region that would finish it sooner."""
    overflow_after: PositiveSeconds = 0.2
    """If every region is predicted to need more than this many seconds for an item, the item goes
    to an overflow pool."""
    max_calls_per_backend: PositiveCount = 256
    """The most calls that a worker has in flight to one backend."""
    client: Literal["native", "httpx"] = "native"
    """The HTTP client for calls and probes. `native` is the gateway's own client. `httpx` uses the
    proxies in `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, but is slower, because it opens a
    connection for each call. After a reload, calls in flight keep their client."""


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of a model from a date on. Prices are per unit, in 10^-9 of `currency`."""

    model: str = "*"
    """The model. `*` stands for every model that has no price of its own."""
    since: str = "2026-01-01"
    """The day (UTC) from which the price applies."""
    currency: str = "EUR"
    """The currency of the price."""
    hit: Price = 0
    """The price of an item whose result was cached, or that was coalesced with an equal item."""
    computed: Price = 0
    """The price of an item that was computed."""
    row: Price = 0
    """The price of each row computed for the item."""
    token: Price = 0
    """The price of each token computed for the item."""
    batch_percent: Annotated[int, unit("percent"), Meta(ge=0, le=1000)] = 100
    """The prices for batch jobs, in percent of the other prices. A price is rounded to 10^-9 of the
    currency. Invoices list items of batch jobs as `model@since+batch`. Invoices
    list calls of `tokenize` and `detokenize`, which are free, as `model@since+tokens`."""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration document, from all files of the configuration folder."""

    regions: tuple[RegionConfig, ...] = ()
    models: dict[str, ModelConfig] = {}
    guards: dict[str, GuardConfig] = {}
    routers: dict[str, RouterConfig] = {}
    decisions: DecisionsConfig = DecisionsConfig()
    deadline: DeadlineConfig = DeadlineConfig()
    cache: CacheConfig = CacheConfig()
    request: RequestConfig = RequestConfig()
    # Litestar hashes default values, but this type cannot be hashed, because it contains a
    # dictionary.
    cors: CorsConfig = msgspec.field(default_factory=CorsConfig)
    idempotency: IdempotencyConfig = IdempotencyConfig()
    limits: LimitsConfig = LimitsConfig()
    routing: RoutingConfig = RoutingConfig()
    prices: Annotated[
        tuple[PriceConfig, ...],
        takes_effect(
            "from the date of each price. A document that changes the cost of past usage is refused"
        ),
    ] = (PriceConfig(),)
