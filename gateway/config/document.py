"""Defines the schema of the reloadable configuration document.

`gateway.config.load` reads it from YAML. Every field has a default for a first run, so a document
contains only values that differ. A reload applies all fields to running workers.
"""

from typing import Literal

import msgspec

from gateway.types import Rule


class BackendConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backend process, or all backends of a DNS name. `id` is unique in the document."""

    id: str
    """The name of the backend, unique in the document."""
    url: str = ""
    """The address of the backend: `http://host:port`, or `https://host:port` for TLS."""
    dns: str = ""
    """A DNS name and port, `name:port`, in place of `url`. Each address of the name is a
    backend."""
    tls: bool = False
    """Whether the backends of a `dns` name speak TLS."""
    weight: float = 1.0
    """The share of items that the backend gets, relative to other backends."""
    server_name: str = ""
    """The name in the backend's certificate; by default the host of `url` or `dns`."""


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends of a region. An `overflow` pool is used when the other pools are saturated."""

    name: str = "default"
    """The name of the pool, unique in its region."""
    overflow: bool = False
    """Whether the pool only gets items that would wait too long in every other pool
    (`routing.overflow_after`)."""
    models: tuple[str, ...] = ()
    """Names and patterns (`toxic-*`) of the models that the pool's backends serve. Empty:
    `SLUICEGATE_BACKEND_SERVES` of each backend decides."""
    cost_per_hour: float = 0.0
    """The cost of one backend for an hour, in the currency of the prices. The console computes the
    margin with it; 0: unknown."""
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
    cache_ttl: float = 86_400.0
    """Seconds that a result is cached; 0: not cached. A new value also applies to results that are
    already cached, if it is shorter."""
    stale_while_revalidate: float = 0.0
    """Seconds for which the gateway still serves a result that has expired, or is from the previous
    revision, while it computes a new one."""
    stale_if_error: float = 0.0
    """Seconds for which the gateway serves a stale result if no backend answers; 0: never."""
    enabled: bool = True
    """Whether customers may call the model."""
    planned: bool = False
    """Whether the gateway accepts the model's name although no backend serves the model yet."""
    limits: tuple[Rule, ...] = ()
    """Limits on the items that backends compute for the model, for all tenants together. The fields
    are as in `limits`."""
    moderation: dict[str, str] = {}
    """For a classifier that answers `POST /v1/moderations`: the category of each label, such as
    `toxic: harassment`. `GET /v1/models` shows the labels. Labels without a category are ignored.
    The document is refused if a backend serves the model and the model lacks a label."""
    moderation_threshold: float = 0.5
    """The lowest score at which a category applies to a text."""
    token_ids: bool = False
    """Whether `POST /v1/embeddings` and TEI's `/embed` accept token ids in place of texts. Leave it
    off if LangChain calls the model without `check_embedding_ctx_length=False`, because LangChain
    then sends token ids of OpenAI's vocabularies."""


class DeadlineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that a request may take: `default`, and the `maximum` that a caller may request."""

    default: float = 10.0
    """Seconds that a request may take, unless the caller asks for another time."""
    maximum: float = 60.0
    """The most seconds that `X-Request-Timeout` may ask for. Lines of batch jobs that are sent
    again may have more."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result cache. `ttl_jitter` is the largest fraction by which lifetimes vary at random."""

    memory_bytes: int = 64 * 1024 * 1024
    """The size of each worker's memory tier."""
    memory_enabled: bool = True
    """Whether workers cache results in memory."""
    redis_enabled: bool = True
    """Whether workers cache results in Redis."""
    redis_timeout: float = 0.015
    """Seconds that a look-up in Redis may take. A slower look-up counts as a miss. After five slow
    look-ups in a row, the worker stops using Redis, and probes it once a second until it answers in
    time."""
    ttl_jitter: float = 0.1
    """The largest share by which lifetimes are shortened at random."""
    lease: float = 0.25
    """Seconds that a worker's claim on an item lasts. The worker renews the claim while it computes
    the item. Other workers that need the item wait for the result, for at most half of their
    request's remaining time; 0: no claims."""
    refusal_ttl: float = 60.0
    """Seconds that the gateway caches a refusal that an equal item would get again. It never caches
    `algorithm_too_slow`."""
    refreshes: int = 64
    """The most stale items that a worker refreshes at a time. It refreshes others later."""


class RequestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the size of a request."""

    max_body_bytes: int = 8 * 1024 * 1024
    """The largest body; a larger one gets 413. The bodies above 256 KiB in a worker may together
    take 16 times this size, divided fairly among API keys. A body that finds no room gets 503
    `overloaded`."""
    max_items: int = 2048
    """The most items of a request; a request with more gets 413."""
    max_values: int = 65_536
    """The most JSON values in a body, counting lists and objects; a body with more gets 413."""
    max_template_bytes: int = 4096
    """The longest `hypothesis_template` of `zero-shot`; a longer one gets 422
    `expansion_too_large`."""
    max_label_bytes: int = 4096
    """The longest label of `zero-shot`; a longer one gets 422 `expansion_too_large`."""
    max_expanded_bytes: int = 64 * 1024 * 1024
    """The most bytes of text that models read for a request; more gets 422 `expansion_too_large`.
    In `zero-shot`, each pair of an input and a label counts."""
    max_answer_bytes: int = 96 * 1024 * 1024
    """The largest answer that a request could have; a request that could have a larger one gets 422
    `expansion_too_large`. The large requests in a worker may together take twice the sum of this
    bound and `max_expanded_bytes`. A request that finds no room before its deadline gets 503
    `overloaded`."""


class CorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origins whose pages may read responses, `*` for all; `tenants` adds origins of a tenant."""

    origins: tuple[str, ...] = ()
    """Origins whose pages may call the API, for all tenants; `"*"`: every origin."""
    tenants: dict[str, tuple[str, ...]] = {}
    """Additional origins for the keys of a tenant: `{acme: ["https://app.acme.example"]}`."""
    max_age: int = 7_200
    """Seconds for which browsers cache the response to a preflight request."""


class IdempotencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on stored requests with an `Idempotency-Key`, for each tenant."""

    lease: float = 5.0
    """Seconds that a request's claim on its key lasts. The worker renews the claim while the
    request runs. If the worker dies, a retry runs the request again after this time."""
    max_keys: int = 50_000
    """The most keys that are stored for a tenant. The oldest are removed first."""
    max_bytes: int = 32 * 1024 * 1024
    """The most bytes of stored keys and answers for a tenant. If an answer finds no room, a retry
    computes it again."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default limits of tenants and API keys."""

    tenant: tuple[Rule, ...] = (
        Rule(name="minute", unit="requests", capacity=6_000, window=60.0),
        Rule(name="items", unit="items", capacity=60_000, window=60.0),
    )
    """Limits of each tenant without limits of its own; by default 6,000 requests and 60,000 items a
    minute."""
    key: tuple[Rule, ...] = ()
    """Limits of each key without limits of its own."""
    local_share: float = 0.1
    """The fraction of each limit that a worker admits while it cannot reach Redis. It also applies
    to a region that has not reached the ledger for `share_lease` seconds."""
    share_lease: float = 30.0
    """For several gateway regions. A region that cannot reach the ledger for these seconds loses
    its shares of the limits to the other regions, and then admits `limits.local_share`. At least
    5."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selection, ejection, retries and probes of backends. Durations are in seconds."""

    attempts: int = 3
    """The most attempts for an item."""
    attempt_timeout: float = 5.0
    """Seconds without progress after which the gateway gives up an attempt, unless the request's
    deadline comes first. A backend that works on earlier items makes progress."""
    connect_timeout: float = 0.5
    """Seconds that connecting to a backend may take. If the backend's name has several addresses,
    the gateway tries all of them in the first half of this time."""
    probe_interval: float = 0.5
    """Seconds between two probes of a backend, varied at random by up to a fifth. A worker sends at
    most 400 probes a second on average. With many backends, the interval is therefore (backends /
    400) s: 5 s with 2,000 backends."""
    probe_timeout: float = 1.0
    """Seconds that a probe may take."""
    dns_interval: float = 5.0
    """Approximate seconds between two look-ups of a DNS name."""
    dns_timeout: float = 2.0
    """Seconds that a DNS look-up may take."""
    eject_after: int = 5
    """Failures in a row after which a backend is ejected."""
    eject_for: float = 5.0
    """Seconds that the first ejection of a backend lasts. Later ones last longer."""
    eject_share: float = 0.2
    """The share of failed calls at which a backend is ejected even without `eject_after` failures
    in a row. It counts the calls of about the last 5 s, from the first failure on, and needs at
    least ten."""
    max_ejected: float = 0.5
    """The largest share of all backends that may be ejected at the same time, rounded up."""
    panic_threshold: float = 0.5
    """The share of a model's backends that must be available. If fewer are, the gateway uses
    ejected backends, too. Drained backends do not count."""
    hedge_share: float = 0.0
    """The share of items that may also be sent to a second backend. An item is sent again once it
    waits longer than 95 % of similar items."""
    slow_start: float = 5.0
    """Seconds in which the share of a backend that returns rises to its full value."""
    spill_after: float = 0.05
    """Seconds of predicted wait in the preferred region above which items go to another region, if
    it answers sooner."""
    overflow_after: float = 0.2
    """Seconds of predicted wait in every region above which items go to an overflow pool."""
    max_calls_per_backend: int = 256
    """The most calls that a worker has in flight to one backend."""
    client: Literal["native", "httpx"] = "native"
    """The HTTP client for calls and probes: `native`, the gateway's own, or `httpx`. `httpx` uses
    the proxies in `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`. It is slower, because it opens a
    connection for each call. After a reload, calls in flight keep their client."""


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a model (`*`: any) from a date on, in 10^-9 of `currency` a unit."""

    model: str = "*"
    """The model; `*`: every model without a price of its own."""
    since: str = "2026-01-01"
    """The day, UTC, from which the price applies."""
    currency: str = "EUR"
    """The currency of the price."""
    hit: int = 0
    """The price of an item that was cached, or that was coalesced with an equal item."""
    computed: int = 0
    """The price of an item that was computed."""
    row: int = 0
    """The price of each row computed for the item."""
    token: int = 0
    """The price of each token computed for the item."""
    batch_percent: int = 100
    """The price of items in batch jobs, in percent of the prices above, from 0 to 1000. The result
    is rounded to 10^-9 of the currency. Invoices list these items as `model@since+batch`, and calls
    of `tokenize` and `detokenize`, which are free, as `model@since+tokens`."""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole document, from all files of the folder."""

    regions: tuple[RegionConfig, ...] = ()
    models: dict[str, ModelConfig] = {}
    deadline: DeadlineConfig = DeadlineConfig()
    cache: CacheConfig = CacheConfig()
    request: RequestConfig = RequestConfig()
    # Not hashable, because it contains a dictionary; Litestar hashes defaults.
    cors: CorsConfig = msgspec.field(default_factory=CorsConfig)
    idempotency: IdempotencyConfig = IdempotencyConfig()
    limits: LimitsConfig = LimitsConfig()
    routing: RoutingConfig = RoutingConfig()
    prices: tuple[PriceConfig, ...] = (PriceConfig(),)
