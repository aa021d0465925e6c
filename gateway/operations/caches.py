"""Shows and purges caches."""

import asyncio

import msgspec

from sluicegate.gateway.api.openapi_parts import Content
from sluicegate.gateway.cache.statistics import CacheStatistics
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import SOON, Family
from sluicegate.gateway.operations.fleet_view import Json, reported
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.runtime.control_values import Topic

_WORKERS_TIMEOUT = 5.0
FAMILY = Family("operations")


class RedisStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the cache Redis. If it is a cluster, they come from one of its nodes."""

    used_memory: int
    maxmemory: int
    keyspace_hits: int
    keyspace_misses: int
    evicted_keys: int
    expired_keys: int
    keys: int


class CacheTiers(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and counters of the result cache."""

    redis: RedisStatistics | None
    """`null` if the cache Redis cannot be reached."""
    workers: dict[str, CacheStatistics | None]
    """The cache in the memory of each worker."""


class Purge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A purge of all cached results of a `tenant` or of a `model`."""

    tenant: str | None = None
    """The id of the tenant whose cached results are purged."""
    model: str | None = None
    """The name of the model whose cached results are purged."""


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a purge. `live` is true if no worker uses the purged results any more."""

    purged: str
    live: bool
    workers: dict[str, str]


@FAMILY.operation(
    "GET /admin/cache",
    "Sizes and counters of the result cache",
    role=Role.VIEWER,
    answers={200: (Content(type=CacheTiers),)},
)
async def get_cache(context: OperationContext) -> Json:
    """Return sizes and counters of the result cache, in Redis and in each worker's memory."""
    workers = await reported(context.control, "cache")
    return {"redis": await redis_statistics(context.cache_redis), "workers": workers}


@FAMILY.operation(
    "POST /admin/cache/purge",
    "Purge cached results",
    role=Role.OPERATOR,
    errors=(NotFound,),
    example={"model": "sentiment"},
    answers=SOON,
)
async def purge_cache(context: OperationContext, wanted: Purge) -> PurgeResult:
    """Purge cached results. The status is 202 if some workers have not applied it yet."""
    if (wanted.tenant is None) == (wanted.model is None):
        raise InvalidRequest("name either a `tenant` or a `model`")
    if wanted.tenant is not None:
        await asyncio.to_thread(context.ledger.accounts.tenant, wanted.tenant)
    elif wanted.model is not None:
        await context.model_names.check([wanted.model], field="model")
    name = f"tenant:{wanted.tenant}" if wanted.model is None else f"model:{wanted.model}"
    await context.audit("cache.purge", name)
    version = await context.control.raise_epoch(name)
    workers = await context.control.wait_for_workers(Topic.EPOCHS, version, within=_WORKERS_TIMEOUT)
    live = all(outcome == "ok" for outcome in workers.values())
    return PurgeResult(purged=name, live=live, workers=workers)


async def redis_statistics(redis: PipelinedClient) -> dict[str, int] | None:
    """Return statistics of Redis, or of one node of a cluster; `None` if Redis is unreachable."""
    try:
        info, keys = await redis.execute([("INFO",), ("DBSIZE",)])
    except OSError:
        return None
    if not isinstance(info, bytes) or not isinstance(keys, int):
        return None
    lines = dict(line.partition(":")[::2] for line in info.decode().splitlines())
    names = RedisStatistics.__struct_fields__
    return {name: int(lines[name]) for name in names if name in lines} | {"keys": keys}
