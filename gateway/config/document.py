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
    """Where the backend listens, `http://host:port`, or `https://host:port` for TLS."""
    dns: str = ""
    """Instead of `url`: `name:port`, with a backend at each address of the name."""
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
    """Used only if the other pools do not suffice."""
    models: tuple[str, ...] = ()
    """Names and patterns (`toxic-*`) of the models that its backends serve; empty: each backend's
    own setting."""
    cost_per_hour: float = 0.0
    """The cost of one backend for an hour, in the currency of the prices, for the console's margin;
    0: unknown."""
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
    """Seconds that a result is kept; 0: not kept. A shorter time also applies to stored results."""
    stale_while_revalidate: float = 0.0
    """Seconds for which a result that is expired, or of the previous revision, is served while
    it is refreshed."""
    stale_if_error: float = 0.0
    """Seconds for which a stale answer is given if no backend answers; 0: never."""
    enabled: bool = True
    """Whether customers may call the model."""
    planned: bool = False
    """Whether to accept the name although no backend serves the model yet."""
    limits: tuple[Rule, ...] = ()
    """Limits on items computed for the model, over all tenants; fields as in `limits`."""
    moderation: dict[str, str] = {}
    """For a classifier behind `POST /v1/moderations`: the category of each label, as `toxic:
    harassment`, with labels as `GET /v1/models` shows them. Other labels are ignored. A label that
    the model lacks is refused, if a backend serves the model."""
    moderation_threshold: float = 0.5
    """The score from which a category applies to a text."""
    token_ids: bool = False
    """Whether `POST /v1/embeddings` and TEI's `/embed` take tokens in place of texts. Leave it off
    if LangChain calls the model without `check_embedding_ctx_length=False`: LangChain then sends
    ids of OpenAI's vocabularies."""


class DeadlineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that a request may take: `default`, and the `maximum` that a caller may request."""

    default: float = 10.0
    """Seconds that a request may take."""
    maximum: float = 60.0
    """The most that `X-Request-Timeout` may ask for; retried lines of batches may have more."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result cache. `ttl_jitter` is the largest fraction by which lifetimes vary at random."""

    memory_bytes: int = 64 * 1024 * 1024
    """The memory tier of each worker."""
    memory_enabled: bool = True
    """Whether there is a memory tier."""
    redis_enabled: bool = True
    """Whether there is a Redis tier."""
    redis_timeout: float = 0.015
    """Seconds; a slower look-up is a miss. After five slow look-ups in a row the circuit
    breaker opens: Redis is probed once a second until it answers in time."""
    ttl_jitter: float = 0.1
    """The largest share by which lifetimes are shortened at random."""
    lease: float = 0.25
    """Seconds that a worker's claim on an item lasts; the worker renews it while it computes. Other
    workers wait for at most half of their remaining time; 0: no claims."""
    refusal_ttl: float = 60.0
    """Seconds that a repeatable refusal is cached; `algorithm_too_slow` is never cached."""
    refreshes: int = 64
    """Stale items that a worker refreshes at a time; the others are refreshed later."""


class RequestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the size of a request."""

    max_body_bytes: int = 8 * 1024 * 1024
    """Larger bodies get 413. In each worker, bodies above 256 KiB share 16 times this size, divided
    fairly among keys; a body without room gets 503 `overloaded`."""
    max_items: int = 2048
    """Requests with more items get 413."""
    max_values: int = 65_536
    """Bodies with more JSON values, lists and objects included, get 413."""
    max_template_bytes: int = 4096
    """A `zero-shot` request with a longer `hypothesis_template` gets 422 `expansion_too_large`."""
    max_label_bytes: int = 4096
    """A `zero-shot` request with a longer label gets 422 `expansion_too_large`."""
    max_expanded_bytes: int = 64 * 1024 * 1024
    """The most bytes that models read for a request. In `zero-shot`, each label counts for each
    input."""
    max_answer_bytes: int = 96 * 1024 * 1024
    """The largest possible answer of a request; more gets 422 `expansion_too_large`. In each
    worker, large requests share twice the sum of this limit and `max_expanded_bytes`; a request
    that finds no room before its deadline gets 503 `overloaded`."""


class CorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origins whose pages may read responses, `*` for all; `tenants` adds origins of a tenant."""

    origins: tuple[str, ...] = ()
    """Origins for all tenants; `"*"`: every origin."""
    tenants: dict[str, tuple[str, ...]] = {}
    """More origins for the keys of a tenant: `{acme: ["https://app.acme.example"]}`."""
    max_age: int = 7_200
    """Seconds for which browsers cache the response to a preflight request."""


class IdempotencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on stored requests with an `Idempotency-Key`, for each tenant."""

    lease: float = 5.0
    """Seconds after which a retry runs again if the first request's worker died. The worker renews
    this time while the request runs."""
    max_keys: int = 50_000
    """The most keys of a tenant; the oldest are forgotten first."""
    max_bytes: int = 32 * 1024 * 1024
    """The most bytes of a tenant's keys and stored responses. If a response does not fit, a retry
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
    """The fraction of each limit that a worker admits on its own while Redis is down. It also
    applies to a region that has not reached the ledger for `share_lease` seconds."""
    share_lease: float = 30.0
    """With several gateway regions: seconds without the ledger after which the other regions take a
    region's shares of limits. The region then admits `limits.local_share`. At least 5."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selection, ejection, retries and probes of backends. Durations are in seconds."""

    attempts: int = 3
    """The largest number of attempts for an item."""
    attempt_timeout: float = 5.0
    """Seconds without progress after which an attempt is given up, within the request's deadline. A
    backend that works on earlier items shows progress."""
    connect_timeout: float = 0.5
    """Seconds to connect to a backend; all its addresses are tried within half of this time."""
    probe_interval: float = 0.5
    """Seconds between two probes of a backend, give or take a fifth. A worker sends at most 400
    probes a second in the long run, so the interval is longer in a large fleet: 5 s for 2,000
    backends."""
    probe_timeout: float = 1.0
    """Seconds that a probe may take."""
    dns_interval: float = 5.0
    """Seconds between two look-ups of a name, about."""
    dns_timeout: float = 2.0
    """Seconds that a DNS look-up may take."""
    eject_after: int = 5
    """Failures in a row after which a backend is ejected."""
    eject_for: float = 5.0
    """Seconds that the first ejection lasts."""
    eject_share: float = 0.2
    """The share of failed calls from which a backend is ejected even if its failures are not
    consecutive. It covers the last seconds, from the first failure on, and at least ten calls."""
    max_ejected: float = 0.5
    """The largest share of all backends that may be ejected at a time, rounded up."""
    panic_threshold: float = 0.5
    """If less than this share of a model's backends is available, ejected backends are used too.
    Drained backends are not counted."""
    hedge_share: float = 0.0
    """The share of items that may go to a second backend too, once they wait longer than the 95th
    percentile of their kind."""
    slow_start: float = 5.0
    """Seconds in which a returning backend's share rises to its full value."""
    spill_after: float = 0.05
    """Seconds of predicted wait in the preferred region after which items go to another region that
    answers sooner."""
    overflow_after: float = 0.2
    """Seconds of predicted wait in every region after which items go to an overflow pool."""
    max_calls_per_backend: int = 256
    """Calls in flight to one backend, from one worker."""
    client: Literal["native", "httpx"] = "native"
    """The HTTP client for calls and probes: the gateway's own (`native`), or `httpx`, which is
    slower: it opens a connection for each call. `httpx` uses the proxies of `HTTP_PROXY`,
    `HTTPS_PROXY` and `NO_PROXY`. Calls in flight keep their client."""


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a model (`*`: any) from a date on, in 10^-9 of `currency` a unit."""

    model: str = "*"
    """The model; `*`: every model without a price of its own."""
    since: str = "2026-01-01"
    """The day, UTC, from which the price applies."""
    currency: str = "EUR"
    """The currency of the price."""
    hit: int = 0
    """The price of an item from the cache, or of one coalesced with an equal item."""
    computed: int = 0
    """The price of an item that was computed."""
    row: int = 0
    """The price of each row computed for the item."""
    token: int = 0
    """The price of each token computed for the item."""
    batch_percent: int = 100
    """The price of the lines of batches, in percent of the prices above, 0 to 1000, rounded to
    10^-9 of the currency. Invoices list these lines as `model@since+batch`, and free tokens as
    `model@since+tokens`."""


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
