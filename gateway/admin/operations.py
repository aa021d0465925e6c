"""Serves the operators' routes of caches, regions, metrics and health."""

import asyncio
import contextlib
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, SkipValidation
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.admin.active_document import ActiveDocumentReader
from gateway.admin.fleet_view import reported_backends
from gateway.admin.model_names import ModelNameValidator
from gateway.api.health import Liveness
from gateway.config.document import BackendConfig
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.http.draining import DRAINING, Draining
from gateway.ledger.ledger import Ledger
from gateway.ledger.regional_shares import RegionLease, ShareRow
from gateway.redis.connect import Pipe
from gateway.redis.health import responds_to_ping
from gateway.runtime.control import Control, Topic
from gateway.runtime.recovery import Recovery
from gateway.settings import Settings
from gateway.telemetry.metric_files import files_held
from gateway.telemetry.restarts_collector import RestartsCollector

_WORKERS_TIMEOUT = 5.0
_REDIS_STATISTICS = (
    "used_memory",
    "maxmemory",
    "keyspace_hits",
    "keyspace_misses",
    "evicted_keys",
    "expired_keys",
)
Json = dict[str, Any]  # Any: what workers report of themselves is passed on as it is


class Purge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A purge of every cached answer of a `tenant`, or of a `model`."""

    tenant: str | None = None
    """The id of a tenant, whose answers are forgotten."""
    model: str | None = None
    """The name of a model, whose answers are forgotten."""


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a purge; `live` when no worker uses the purged answers any more."""

    purged: str
    live: bool
    workers: dict[str, str]


class DrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a drain or restore of `backend`; `live` when every worker has it."""

    backend: str
    drained: bool
    live: bool
    workers: dict[str, str]


class RegionLimitShares(msgspec.Struct, frozen=True, kw_only=True):
    """Live gateway regions, and their shares of limits by bucket.

    The bucket without a name stands for all that are not listed.
    """

    regions: list[RegionLease]
    shares: list[ShareRow]


class OperatorsReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Ready when nothing is `missing`; `degraded` names what is down and not needed for changes.

    Requests with the admin key also get the problems of `backends`.
    """

    ready: bool
    missing: list[str]
    degraded: list[str] = []
    backends: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET


class OperationsController(Controller):
    """Shows caches and regions, purges caches, and drains and restores backends."""

    path = "/admin"

    @get("/cache")
    async def cache(
        self, control: NamedDependency[Control], cache_redis: NamedDependency[SkipValidation[Pipe]]
    ) -> Json:
        """Return sizes and counts of the Redis tier, and of each worker's."""
        workers = await _reports(control, "cache")
        return {"redis": await _redis_statistics(cache_redis), "workers": workers}

    @post("/cache/purge", status_code=200)
    async def purge(
        self,
        data: JSONBody[Purge],
        control: NamedDependency[Control],
        ledger: NamedDependency[Ledger],
        model_names: NamedDependency[ModelNameValidator],
    ) -> Response[PurgeResult]:
        """Forget cached answers; 200 when every worker has, 202 when not yet."""
        if (data.tenant is None) == (data.model is None):
            raise InvalidRequest("name either a `tenant` or a `model`")
        if data.tenant is not None:
            await asyncio.to_thread(ledger.accounts.tenant, data.tenant)
        elif data.model is not None:
            await model_names.check([data.model], field="model")
        name = f"tenant:{data.tenant}" if data.model is None else f"model:{data.model}"
        # First: no change without an entry in the audit log.
        await asyncio.to_thread(ledger.audit, "admin", "cache.purge", name)
        version = await control.raise_epoch(name)
        workers = await control.wait_for_workers(Topic.EPOCHS, version, within=_WORKERS_TIMEOUT)
        live = all(outcome == "ok" for outcome in workers.values())
        purged = PurgeResult(purged=name, live=live, workers=workers)
        return Response(purged, status_code=200 if live else 202)

    @get("/regions")
    async def regions(
        self, control: NamedDependency[Control], active: NamedDependency[ActiveDocumentReader]
    ) -> Json:
        """Return the backends of each region, those of DNS names too, as every worker sees them."""
        seen = await _reports(control, "fleet")
        document = await active.document()
        drained = await control.drained()
        regions = [
            {
                "name": region.name,
                "backends": [
                    {
                        "id": name,
                        "url": url,
                        "dns": backend.dns,
                        "pool": pool.name,
                        "overflow": pool.overflow,
                        "drained": not drained.isdisjoint({name, backend.id}),
                        "workers": _views(seen, name),
                    }
                    for pool in region.pools
                    for backend in pool.backends
                    for name, url in _backends_of(backend, seen)
                ],
            }
            for region in document.regions
        ]
        return {"regions": regions}

    @get("/regions/shares")
    async def shares(
        self, ledger: NamedDependency[Ledger], tenant: FromQuery[str | None] = None
    ) -> RegionLimitShares:
        """Return the gateway regions, and what each may use of limits (of one tenant, or all)."""
        if tenant is not None:
            await asyncio.to_thread(ledger.accounts.tenant, tenant)
        regions = await asyncio.to_thread(ledger.shares.regions)
        rows = await asyncio.to_thread(ledger.shares.shares, tenant)
        return RegionLimitShares(regions=regions, shares=rows)

    @post("/regions/{region:str}/backends/{backend:str}/drain", status_code=200)
    async def drain(
        self,
        region: FromPath[str],
        backend: FromPath[str],
        control: NamedDependency[Control],
        active: NamedDependency[ActiveDocumentReader],
        ledger: NamedDependency[Ledger],
        recovery: NamedDependency[SkipValidation[Recovery]],
    ) -> Response[DrainResult]:
        """Give a backend no more work; what it has is finished. 200 when every worker knows.

        The id of an entry with a DNS name is that of all its backends.
        """
        await _check_backend(active, control, region, backend)
        await recovery.reconcile()
        await asyncio.to_thread(ledger.audit, "admin", "backend.drain", backend)
        version = await control.drain(backend)
        with contextlib.suppress(GatewayError):  # `Recovery.follow` tries again
            await recovery.reconcile()
        return await _drained(control, backend, version, drained=True)

    @post("/regions/{region:str}/backends/{backend:str}/restore", status_code=200)
    async def restore(
        self,
        region: FromPath[str],
        backend: FromPath[str],
        control: NamedDependency[Control],
        active: NamedDependency[ActiveDocumentReader],
        ledger: NamedDependency[Ledger],
        recovery: NamedDependency[SkipValidation[Recovery]],
    ) -> Response[DrainResult]:
        """Give a drained backend work again, little at first. 200 when every worker knows."""
        await _check_backend(active, control, region, backend)
        await recovery.reconcile()
        await asyncio.to_thread(ledger.audit, "admin", "backend.restore", backend)
        version = await control.restore(backend)
        with contextlib.suppress(GatewayError):  # `Recovery.follow` tries again
            await recovery.reconcile()
        return await _drained(control, backend, version, drained=False)


@get("/metrics")
async def metrics(settings: NamedDependency[Settings]) -> Response[bytes]:
    """Return the metrics of all workers together, as Prometheus reads them."""
    text = await asyncio.to_thread(_collect, settings)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


@get("/health/live", opt={"public": True})
async def live() -> Liveness:
    """Answer 200."""
    return Liveness()


@get("/health/ready", opt={"public": True})
async def ready(
    request: Request[Any, Any, Any],
    control: NamedDependency[Control],
    ledger: NamedDependency[Ledger],
    cache_redis: NamedDependency[SkipValidation[Pipe]],
    draining: NamedDependency[Draining],
) -> Response[OperatorsReadiness]:
    """Answer 200 when changes can be made, else 503 with what is missing."""
    missing = [DRAINING] if draining.is_announced else []
    for name, question in (
        ("state_redis", control.versions()),
        ("ledger", asyncio.to_thread(ledger.accounts.version)),
    ):
        try:
            await question
        except GatewayError as error:
            missing.append(f"{name}: {error.detail}")
    degraded = [] if await responds_to_ping(cache_redis) else ["cache_redis: cannot be reached"]
    is_admin = request.scope["state"]["is_admin"]
    backends = (await _backend_problems(control) or msgspec.UNSET) if is_admin else msgspec.UNSET
    readiness = OperatorsReadiness(
        ready=not missing, missing=missing, degraded=degraded, backends=backends
    )
    return Response(readiness, status_code=503 if missing else 200)


async def _backend_problems(control: Control) -> dict[str, list[str]]:
    """Return the problems of backends that are not ready, by their ids."""
    try:
        seen = await reported_backends(control)
    except GatewayError:
        return {}
    lines = {
        name: view.missing or ([view.trouble or view.health] if view.health != "ready" else [])
        for name, view in sorted(seen.items())
    }
    return {name: lines[name] for name in lines if lines[name]}


async def _check_backend(
    active: ActiveDocumentReader, control: Control, region: str, backend: str
) -> None:
    """Raise `NotFound` unless the backend is in the region, by the document or a DNS name in it."""
    document = await active.document()
    entries = [
        placed
        for entry in document.regions
        if entry.name == region
        for pool in entry.pools
        for placed in pool.backends
    ]
    if any(placed.id == backend for placed in entries):
        return
    if any(placed.dns and placed.id == backend.partition("@")[0] for placed in entries):
        seen = await _reports(control, "fleet")
        # A drained backend may be gone, and must be restored for the next one at its address.
        if _views(seen, backend) or backend in await control.drained():
            return
    raise NotFound(f"there is no backend `{backend}` in region `{region}`")


async def _drained(
    control: Control, backend: str, version: int, *, drained: bool
) -> Response[DrainResult]:
    workers = await control.wait_for_workers(Topic.DRAINS, version, within=_WORKERS_TIMEOUT)
    live = all(outcome == "ok" for outcome in workers.values())
    done = DrainResult(backend=backend, drained=drained, live=live, workers=workers)
    return Response(done, status_code=200 if live else 202)


def _collect(settings: Settings) -> bytes:
    registry = CollectorRegistry()
    registry.register(RestartsCollector(settings.data_dir))
    folder = settings.metrics_dir
    with files_held(folder, exclusive=False):
        folder.mkdir(parents=True, exist_ok=True)
        MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
        return generate_latest(registry)


async def _reports(control: Control, part: str) -> Json:
    """Return one part of each worker's last report."""
    reports = await control.reports()
    return {worker: msgspec.json.decode(text).get(part) for worker, text in reports.items()}


def _backends_of(backend: BackendConfig, seen: Json) -> list[tuple[str, str]]:
    """Return id and URL of the backends that an entry of the document stands for."""
    if not backend.dns:
        return [(backend.id, backend.url)]
    found = {
        (view["backend"], view["url"])
        for fleet in seen.values()
        for view in fleet or ()
        if view.get("dns") and view["backend"].partition("@")[0] == backend.id
    }
    return sorted(found) or [(backend.id, "")]


def _views(seen: Json, backend: str) -> Json:
    """Return each worker's view of `backend`."""
    return {
        worker: view
        for worker, fleet in seen.items()
        for view in fleet or ()
        if view.get("backend") == backend
    }


async def _redis_statistics(redis: Pipe) -> Json | None:
    """Return statistics of Redis; of a cluster, those of one node."""
    try:
        info, keys = await redis.execute([("INFO",), ("DBSIZE",)])
    except OSError:
        return None
    if not isinstance(info, bytes) or not isinstance(keys, int):
        return None
    lines = dict(line.partition(":")[::2] for line in info.decode().splitlines())
    return {name: int(lines[name]) for name in _REDIS_STATISTICS if name in lines} | {"keys": keys}
