"""Serves the operators' routes for caches, metrics and health."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, SkipValidation
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway.admin.authorization import OPERATOR
from gateway.admin.degradation import DegradationReader
from gateway.admin.openapi import SOON
from gateway.api.health import Liveness
from gateway.api.openapi_parts import Content, Operation
from gateway.cache.base import CacheStatistics
from gateway.errors import DependencyUnavailable, GatewayError, InvalidRequest, NotFound
from gateway.http.draining import DRAINING, Draining
from gateway.ledger.ledger import Ledger
from gateway.operations.fleet_view import Json, clock_problems, merge_reports, reported
from gateway.operations.model_names import ModelNameValidator
from gateway.operations.operators import Operator, Role
from gateway.redis.connect import PipelinedClient
from gateway.redis.health import responds_to_ping
from gateway.runtime.control import Control, Topic
from gateway.settings import Settings
from gateway.telemetry.exemplars import with_exemplars
from gateway.telemetry.metrics_page import ReadMetrics, read_metrics

_WORKERS_TIMEOUT = 5.0
_NO_REPORTS = "workers: the state Redis has no worker's report; it may refuse writes"
_OPEN_METRICS = "application/openmetrics-text"


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


class OperatorsReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether operators can make changes.

    `missing` lists what prevents changes. `ready` is true if `missing` is empty. `degraded` lists
    problems that do not prevent changes, such as an unreachable cache Redis.

    Operators with the role `viewer` see more. For them, `degraded` also lists problems of the disk,
    event logs, dependencies, workers and clocks. They also get `backends`, which lists the problems
    of each backend that is not ready.
    """

    ready: bool
    missing: list[str]
    degraded: list[str] = []
    backends: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET


class CacheController(Controller):
    """Shows and purges caches."""

    path = "/admin/cache"

    @get(
        "/",
        opt={"role": Role.VIEWER},
        operation=Operation(
            id="get_cache",
            summary="Sizes and counters of the result cache",
            tag="operations",
            errors=(DependencyUnavailable,),
            answers={200: (Content(type=CacheTiers),)},
        ),
    )
    async def cache(
        self,
        control: NamedDependency[Control],
        cache_redis: NamedDependency[SkipValidation[PipelinedClient]],
    ) -> Json:
        """Return sizes and counters of the result cache, in Redis and in each worker's memory."""
        workers = await reported(control, "cache")
        return {"redis": await redis_statistics(cache_redis), "workers": workers}

    @post(
        "/purge",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=Operation(
            id="purge_cache",
            summary="Purge cached results",
            tag="operations",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example={"model": "sentiment"}),),
            answers=SOON,
        ),
    )
    async def purge(
        self,
        data: JSONBody[Purge],
        control: NamedDependency[Control],
        ledger: NamedDependency[Ledger],
        model_names: NamedDependency[ModelNameValidator],
        operator: NamedDependency[Operator],
    ) -> Response[PurgeResult]:
        """Purge cached results. The status is 202 if some workers have not applied it yet."""
        if (data.tenant is None) == (data.model is None):
            raise InvalidRequest("name either a `tenant` or a `model`")
        if data.tenant is not None:
            await asyncio.to_thread(ledger.accounts.tenant, data.tenant)
        elif data.model is not None:
            await model_names.check([data.model], field="model")
        name = f"tenant:{data.tenant}" if data.model is None else f"model:{data.model}"
        # The audit entry comes first, so that there is no change without an entry.
        await asyncio.to_thread(ledger.audit, operator.name, "cache.purge", name)
        version = await control.raise_epoch(name)
        workers = await control.wait_for_workers(Topic.EPOCHS, version, within=_WORKERS_TIMEOUT)
        live = all(outcome == "ok" for outcome in workers.values())
        purged = PurgeResult(purged=name, live=live, workers=workers)
        return Response(purged, status_code=200 if live else 202)


@get(
    "/metrics",
    opt={"role": Role.METRICS, "without_certificate": Role.METRICS},
    operation=Operation(
        id="get_metrics",
        summary="The metrics of all workers",
        tag="operations",
        answers={
            200: (
                Content(
                    media="text/plain",
                    schema={"type": "string"},
                    summary="Metrics in the Prometheus or OpenMetrics text format",
                ),
            )
        },
    ),
)
async def metrics(
    request: Request[Any, Any, Any], settings: NamedDependency[Settings]
) -> Response[bytes]:
    """Return the metrics of all processes of this machine, in a format that Prometheus reads."""
    accept = request.headers.get("accept", "")
    page, media = await asyncio.to_thread(render_metrics, settings, accept)
    return Response(page, headers={"content-type": media})


@get(
    "/health/live",
    operation=Operation(id="is_live", summary="Whether the process responds", tag="health"),
    public=True,
)
async def live() -> Liveness:
    """Respond with 200."""
    return Liveness()


@get(
    "/health/ready",
    operation=Operation(
        id="is_ready",
        summary="Whether operators can make changes",
        tag="health",
        answers={
            200: (Content(type=OperatorsReadiness, summary="Ready"),),
            503: (Content(type=OperatorsReadiness, summary="Not ready, or too many connections"),),
        },
    ),
    public=True,
)
async def ready(
    request: Request[Any, Any, Any],
    control: NamedDependency[Control],
    ledger: NamedDependency[Ledger],
    cache_redis: NamedDependency[SkipValidation[PipelinedClient]],
    draining: NamedDependency[Draining],
    degradation: NamedDependency[DegradationReader],
) -> Response[OperatorsReadiness]:
    """Respond with 200 if operators can make changes, or with 503 and what is missing."""
    missing = [DRAINING] if draining.is_announced else []
    for name, question in (
        ("state_redis", control.versions()),
        ("ledger", asyncio.to_thread(ledger.principals.version)),
    ):
        try:
            await question
        except GatewayError as error:
            missing.append(f"{name}: {error.detail}")
    degraded = [] if await responds_to_ping(cache_redis) else ["cache_redis: cannot be reached"]
    backends: dict[str, list[str]] = {}
    operator = request.scope["state"][OPERATOR]
    if operator is not None and operator.may(Role.VIEWER):
        degraded = [*await degradation.read(), *degraded]
        with contextlib.suppress(GatewayError):  # `missing` already reports the state Redis
            reports = await control.reports()
            degraded += [] if reports else [_NO_REPORTS]
            degraded += clock_problems(reports)
            backends = _backend_problems(reports)
    readiness = OperatorsReadiness(
        ready=not missing, missing=missing, degraded=degraded, backends=backends or msgspec.UNSET
    )
    return Response(readiness, status_code=503 if missing else 200)


def _backend_problems(reports: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the problems of each backend that is not ready, by the backend's id."""
    lines = {
        name: view.missing or ([view.trouble or view.health] if view.health != "ready" else [])
        for name, view in sorted(merge_reports(reports).items())
    }
    return {name: lines[name] for name in lines if lines[name]}


def render_metrics(settings: Settings, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the format that the header `Accept` prefers, and its media type."""
    folder = settings.metrics_dir
    found = read_metrics(folder, data_dir=settings.data_dir)
    encode, media = choose_encoder(accept)
    if media.startswith(_OPEN_METRICS):
        found = with_exemplars(found, folder)
    registry = CollectorRegistry()
    registry.register(ReadMetrics(found))
    return encode(registry), media


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
