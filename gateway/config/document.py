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
    url: str = ""
    """The address of one backend; empty if `dns` is set."""
    dns: str = ""
    """A DNS name and a port. Each address of the name is a backend."""
    tls: bool = False
    """Whether the backends of `dns` use TLS."""
    weight: float = 1.0
    server_name: str = ""
    """The name in the backend's certificate; by default the host of `url` or `dns`."""


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends of a region. An `overflow` pool is used when the other pools are saturated."""

    name: str = "default"
    overflow: bool = False
    models: tuple[str, ...] = ()
    """Names or patterns of the models that the backends serve; empty: the backends' own settings
    decide."""
    cost_per_hour: float = 0.0
    """The cost of one backend for an hour, in the currency of the prices; 0: unknown."""
    backends: tuple[BackendConfig, ...] = ()


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A region. The first region of the document is the preferred one."""

    name: str
    pools: tuple[PoolConfig, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a model. Backends report its other properties."""

    scope: Literal["tenant", "shared"] = "tenant"
    """With `shared`, tenants may receive results cached for other tenants."""
    cache_ttl: float = 86_400.0
    """Seconds for which a result is cached; 0: not cached."""
    stale_while_revalidate: float = 0.0
    """Seconds for which a result that is expired, or of the previous revision, is served while
    it is refreshed."""
    stale_if_error: float = 0.0
    """Seconds for which such a result is served when no backend responds."""
    enabled: bool = True
    planned: bool = False
    """Whether to accept the name although no backend serves the model yet."""
    limits: tuple[Rule, ...] = ()
    """Limits on computations of the model for all tenants together."""
    moderation: dict[str, str] = {}
    """The category of `POST /v1/moderations` for each label. Other labels are ignored."""
    moderation_threshold: float = 0.5
    """The score from which a category applies to a text."""
    token_ids: bool = False
    """Whether OpenAI's and TEI's embedding routes accept token ids of the model's vocabulary in
    place of texts."""


class DeadlineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that a request may take: `default`, and the `maximum` that a caller may request."""

    default: float = 10.0
    maximum: float = 60.0


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result cache. `ttl_jitter` is the largest fraction by which lifetimes vary at random."""

    memory_bytes: int = 64 * 1024 * 1024
    memory_enabled: bool = True
    redis_enabled: bool = True
    redis_timeout: float = 0.015
    ttl_jitter: float = 0.1
    lease: float = 0.25
    """Seconds for which a claim on a result lasts unless it is renewed; 0 turns claims off."""
    refusal_ttl: float = 60.0
    """Seconds for which a deterministic refusal (too long, an invalid label) is cached."""
    refreshes: int = 64
    """The most expired items that a worker refreshes at a time."""


class RequestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the size of a request."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_items: int = 2048
    max_values: int = 65_536
    """The most JSON values in a body, including lists and objects."""
    max_template_bytes: int = 4096
    max_label_bytes: int = 4096
    max_expanded_bytes: int = 64 * 1024 * 1024
    """The most bytes that models read for a request. In `zero-shot`, each label counts for each
    input."""
    max_answer_bytes: int = 96 * 1024 * 1024
    """The largest possible response, estimated from the inputs and the model."""


class CorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origins whose pages may read responses, `*` for all; `tenants` adds origins of a tenant."""

    origins: tuple[str, ...] = ()
    tenants: dict[str, tuple[str, ...]] = {}
    max_age: int = 7_200
    """Seconds for which browsers cache the response to a preflight request."""


class IdempotencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on stored requests with an `Idempotency-Key`, for each tenant."""

    lease: float = 5.0
    """Seconds after which a retry runs again if the first request's worker died. Renewed while
    the request runs."""
    max_keys: int = 50_000
    max_bytes: int = 32 * 1024 * 1024
    """The most bytes of keys and their responses. The oldest are deleted first."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default limits of tenants and API keys."""

    tenant: tuple[Rule, ...] = (
        Rule(name="minute", unit="requests", capacity=6_000, window=60.0),
        Rule(name="items", unit="items", capacity=60_000, window=60.0),
    )
    key: tuple[Rule, ...] = ()
    local_share: float = 0.1
    """The fraction of each limit that a worker admits on its own while Redis is down. It also
    applies to a region that has not reached the ledger for `share_lease` seconds."""
    share_lease: float = 30.0
    """Seconds after which a region that does not report loses its shares of limits."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selection, ejection, retries and probes of backends. Durations are in seconds."""

    attempts: int = 3
    attempt_timeout: float = 5.0
    connect_timeout: float = 0.5
    probe_interval: float = 0.5
    probe_timeout: float = 1.0
    dns_interval: float = 5.0
    dns_timeout: float = 2.0
    eject_after: int = 5
    eject_for: float = 5.0
    eject_share: float = 0.2
    """The fraction of failed calls from which a backend is ejected, consecutive or not."""
    max_ejected: float = 0.5
    """The largest fraction of backends that may be ejected at a time."""
    panic_threshold: float = 0.5
    """If a smaller fraction of backends is available, ejected backends are used, too."""
    hedge_share: float = 0.0
    """The fraction of items that may be hedged: sent to a second backend when the first is late."""
    slow_start: float = 5.0
    """Seconds over which a recovered backend's load is raised."""
    spill_after: float = 0.05
    """The predicted wait in the preferred region above which another region is used."""
    overflow_after: float = 0.2
    """The predicted wait in every region above which an overflow pool is used."""
    max_calls_per_backend: int = 256
    client: Literal["native", "httpx"] = "native"
    """The HTTP client for calls to backends. `httpx` uses the proxies in the environment."""


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a model (`*`: any) from a date on, in 10^-9 of `currency` a unit."""

    model: str = "*"
    since: str = "2026-01-01"
    currency: str = "EUR"
    hit: int = 0
    computed: int = 0
    row: int = 0
    token: int = 0
    batch_percent: int = 100
    """The price of a line of a batch, in percent of these prices."""


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
