"""Defines the schema of the reloadable configuration document.

`gateway.config.load` reads it from YAML. Every field has a default that suits a first run, so that
a document names only what differs. A reload applies every field to running workers.
"""

from typing import Literal

import msgspec

from gateway.types import Rule


class BackendConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One backend process, or all that a DNS name resolves to; `id` is unique in the document."""

    id: str
    url: str = ""
    """The address of one backend; empty where `dns` is given."""
    dns: str = ""
    """A name and a port, with a backend at each address of the name."""
    tls: bool = False
    """Whether the backends of `dns` speak TLS."""
    weight: float = 1.0
    server_name: str = ""
    """The name in its certificate; by default the host of `url` or `dns`."""


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends of one region; an `overflow` pool is used when the other pools are saturated."""

    name: str = "default"
    overflow: bool = False
    models: tuple[str, ...] = ()
    """Names or patterns of the models that its backends serve; empty: what they are set to."""
    cost_per_hour: float = 0.0
    """What an hour of one of its backends costs, in the currency of the prices; 0: unknown."""
    backends: tuple[BackendConfig, ...] = ()


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A region; the first of the document is the preferred one."""

    name: str
    pools: tuple[PoolConfig, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a model beside those that its backends report."""

    scope: Literal["tenant", "shared"] = "tenant"
    """`shared`: tenants may be served each other's cached answers."""
    cache_ttl: float = 86_400.0
    """Seconds an answer is kept; 0 keeps none."""
    stale_while_revalidate: float = 0.0
    """Seconds for which an expired answer, or one of the revision before, is served while it is
    refreshed."""
    stale_if_error: float = 0.0
    """Seconds for which such an answer is served when no backend answers."""
    enabled: bool = True
    planned: bool = False
    """Accepts the name although no backend serves the model yet."""
    limits: tuple[Rule, ...] = ()
    """Limits on what is computed for the model, over all tenants."""
    moderation: dict[str, str] = {}
    """The category of `POST /v1/moderations` that a label is part of; others are ignored."""
    moderation_threshold: float = 0.5
    """The score from which a category applies to a text."""
    token_ids: bool = False
    """Takes ids of the model's own vocabulary in place of texts, where texts are embedded
    for OpenAI's and TEI's clients."""


class DeadlineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds a request may take: `default`, and the `maximum` a caller may ask for."""

    default: float = 10.0
    maximum: float = 60.0


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result cache. `ttl_jitter` shortens lifetimes at random by up to that share."""

    memory_bytes: int = 64 * 1024 * 1024
    memory_enabled: bool = True
    redis_enabled: bool = True
    redis_timeout: float = 0.015
    ttl_jitter: float = 0.1
    lease: float = 0.25
    """Seconds that a claim on an answer lasts unless it is renewed; 0 turns claims off."""
    refusal_ttl: float = 60.0
    """Seconds that a deterministic refusal (too long, a bad label) is cached."""
    refreshes: int = 64
    """Expired items that a worker refreshes at a time."""


class RequestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on one request."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_items: int = 2048
    max_values: int = 65_536
    """JSON values in a body, lists and objects among them."""
    max_template_bytes: int = 4096
    max_label_bytes: int = 4096
    max_expanded_bytes: int = 64 * 1024 * 1024
    """The most that models read for a request: in `zero-shot`, each label for each input."""
    max_answer_bytes: int = 96 * 1024 * 1024
    """The largest answer that a request can have, by its inputs and its model."""


class CorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origins whose pages may read answers, `*` for all; `tenants` adds some for a tenant each."""

    origins: tuple[str, ...] = ()
    tenants: dict[str, tuple[str, ...]] = {}
    max_age: int = 7_200
    """Seconds that browsers keep the answer to a preflight."""


class IdempotencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what is kept of requests with an `Idempotency-Key`, each of a tenant."""

    lease: float = 5.0
    """Seconds after which a retry runs the request of a worker that died; renewed while it runs."""
    max_keys: int = 50_000
    max_bytes: int = 32 * 1024 * 1024
    """Bytes of the keys and their answers; the oldest are forgotten first."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of tenants and keys that have none of their own."""

    tenant: tuple[Rule, ...] = (
        Rule(name="minute", unit="requests", capacity=6_000, window=60.0),
        Rule(name="items", unit="items", capacity=60_000, window=60.0),
    )
    key: tuple[Rule, ...] = ()
    local_share: float = 0.1
    """The share of each limit that a worker admits by itself while Redis is down, and a region
    that has not reached the ledger for `share_lease` seconds."""
    share_lease: float = 30.0
    """Seconds after which a region that does not report loses its shares of limits to others."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selection, ejection, retries and probes of backends. Durations in seconds."""

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
    """Share of failed calls from which a backend is ejected, consecutive or not."""
    max_ejected: float = 0.5
    """Share of the backends that may be ejected at a time."""
    panic_threshold: float = 0.5
    """Below this share of available backends, ejected ones are used as well."""
    hedge_share: float = 0.0
    """Share of items that may be hedged: sent to a second backend when the first is late."""
    slow_start: float = 5.0
    """Seconds over which the load of a recovered backend is raised."""
    spill_after: float = 0.05
    """Predicted wait in the preferred region above which another region is used."""
    overflow_after: float = 0.2
    """Predicted wait in every region above which an overflow pool is used."""
    max_calls_per_backend: int = 256
    client: Literal["native", "httpx"] = "native"
    """What sends calls: `httpx` goes through the proxies that the environment names."""


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
    """What the lines of batches cost, in percent of these prices."""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole document: all files of the folder together."""

    regions: tuple[RegionConfig, ...] = ()
    models: dict[str, ModelConfig] = {}
    deadline: DeadlineConfig = DeadlineConfig()
    cache: CacheConfig = CacheConfig()
    request: RequestConfig = RequestConfig()
    # Not hashable, as it has a dictionary; Litestar hashes defaults.
    cors: CorsConfig = msgspec.field(default_factory=CorsConfig)
    idempotency: IdempotencyConfig = IdempotencyConfig()
    limits: LimitsConfig = LimitsConfig()
    routing: RoutingConfig = RoutingConfig()
    prices: tuple[PriceConfig, ...] = (PriceConfig(),)
