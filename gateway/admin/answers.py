"""Describes response bodies that handlers build without types, for the OpenAPI document."""

import msgspec

from gateway.admin.models import BackendModels
from gateway.cache.base import CacheStatistics
from gateway.http.problem_details import Problem
from gateway.ledger.types import UsageRow
from gateway.routing.statistics import EndpointStatistics

_RENAMED = {"since": "from", "until": "to"}


class BrokenModelsProblem(Problem, frozen=True, kw_only=True, omit_defaults=True):
    """The problem of a reload that found broken models, with what became of all models."""

    live: bool
    workers: dict[str, str]
    backends: dict[str, BackendModels]


class UsagePage(msgspec.Struct, frozen=True, kw_only=True, rename=_RENAMED):
    """Usage from a moment (included) to another (not included), a row per group."""

    since: str
    until: str
    rows: list[UsageRow]


class RedisStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the cache's Redis; of a cluster, those of one node."""

    used_memory: int
    maxmemory: int
    keyspace_hits: int
    keyspace_misses: int
    evicted_keys: int
    expired_keys: int
    keys: int


class CacheTiers(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and counts of the result cache."""

    redis: RedisStatistics | None
    """`null` while it cannot be reached."""
    workers: dict[str, CacheStatistics | None]
    """By worker."""


class BackendState(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of the document, or one found by a DNS name in it."""

    id: str
    url: str
    dns: str
    pool: str
    overflow: bool
    drained: bool
    workers: dict[str, EndpointStatistics]
    """Its statistics by worker."""


class RegionState(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of a region."""

    name: str
    backends: list[BackendState]


class Regions(msgspec.Struct, frozen=True, kw_only=True):
    """The regions, the preferred one first."""

    regions: list[RegionState]
