"""Shows regions, drains and restores backends, and shows regional shares of limits."""

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from sluicegate.gateway.api.openapi_parts import Content
from sluicegate.gateway.config.document import BackendConfig
from sluicegate.gateway.errors import ConfigurationError, GatewayError, NotFound
from sluicegate.gateway.ledger.types import RegionLease, RegionShare
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import SOON, TENANT, Command, Family
from sluicegate.gateway.operations.fleet_view import Json, reported
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.routing.statistics import EndpointStatistics
from sluicegate.gateway.runtime.control_values import Topic

_WORKERS_TIMEOUT = 5.0
_MOST_NAMED = 10
_BACKEND = "/admin/regions/{region}/backends/{backend}"
FAMILY = Family(
    "operations",
    about={
        "tenant": TENANT,
        "region": {"description": "A region of the document.", "example": "eu"},
        "backend": {
            "description": "The id of a backend, or of an entry with a DNS name.",
            "example": "eu-1",
        },
    },
)


class BackendState(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of the configuration document.

    The document lists the backend, or has a DNS name that resolves to the backend.
    """

    id: str
    url: str
    dns: str
    pool: str
    overflow: bool
    drained: bool
    workers: dict[str, EndpointStatistics]
    """The backend's statistics from each worker."""


class RegionState(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of a region."""

    name: str
    backends: list[BackendState]


class Regions(msgspec.Struct, frozen=True, kw_only=True):
    """All regions, in order of preference."""

    regions: list[RegionState]


class DrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a drain or a restore. `live` is true if every worker has applied it."""

    backend: str
    drained: bool
    live: bool
    workers: dict[str, str]


class RegionLimitShares(msgspec.Struct, frozen=True, kw_only=True):
    """The live gateway regions, and their shares of each limit.

    Shares are listed by bucket. The bucket with an empty name stands for all buckets that are not
    listed.
    """

    regions: list[RegionLease]
    shares: list[RegionShare]


@FAMILY.operation(
    "GET /admin/regions",
    "The backends of each region",
    role=Role.VIEWER,
    errors=(ConfigurationError,),
    answers={200: (Content(type=Regions),)},
)
async def list_regions(context: OperationContext) -> Json:
    """Return the backends of each region, with the statistics of every worker."""
    seen = await reported(context.control, "fleet")
    document = await context.active.document()
    drained = await context.control.drained()
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


@FAMILY.operation(
    "GET /admin/regions/shares",
    "The gateway regions' shares of limits",
    role=Role.VIEWER,
    errors=(NotFound,),
)
async def list_shares(context: OperationContext, *, tenant: str | None = None) -> RegionLimitShares:
    """Return the gateway regions' shares of limits, for one tenant or for all."""
    ledger = context.ledger
    if tenant is not None:
        await asyncio.to_thread(ledger.accounts.tenant, tenant)
    regions = await asyncio.to_thread(ledger.shares.regions)
    rows = await asyncio.to_thread(ledger.shares.shares, tenant)
    return RegionLimitShares(regions=regions, shares=rows)


@FAMILY.operation(
    f"POST {_BACKEND}/drain",
    "Drain a backend",
    role=Role.OPERATOR,
    errors=(NotFound, ConfigurationError),
    answers=SOON,
    command=Command(
        usage="regions drain REGION BACKEND",
        help="Stop sending items to a backend. It finishes the items that it has.\n\n"
        "Exit with 1 if a worker has not applied the drain.",
        example="regions drain eu eu-0",
        prints="`{backend}` is drained",
    ),
)
async def drain_backend(context: OperationContext, region: str, backend: str) -> DrainResult:
    """Drain a backend: it finishes the items that it has, and gets no new ones.

    The status is 200 if every worker has applied the drain, and 202 if some have not yet. If
    `backend` is the id of an entry with a DNS name, all backends of this name are drained.
    """
    return await _change(context, region, backend, drained=True)


@FAMILY.operation(
    f"POST {_BACKEND}/restore",
    "Restore a drained backend",
    role=Role.OPERATOR,
    errors=(NotFound, ConfigurationError),
    answers=SOON,
    command=Command(
        usage="regions restore REGION BACKEND",
        help="Start sending items to a drained backend again, a few at first.\n\n"
        "Exit with 1 if a worker has not applied the change.",
        example="regions restore eu eu-0",
        prints="`{backend}` is restored",
    ),
)
async def restore_backend(context: OperationContext, region: str, backend: str) -> DrainResult:
    """Restore a drained backend: it gets items again, but only a few at first.

    The status is 200 if every worker has applied the change, and 202 if some have not yet.
    """
    return await _change(context, region, backend, drained=False)


async def _change(
    context: OperationContext, region: str, backend: str, *, drained: bool
) -> DrainResult:
    """Drain or restore a backend, and wait up to 5 s until every worker has applied the change."""
    await _check(context, region, backend)
    await context.recovery.reconcile()
    await context.audit("backend.drain" if drained else "backend.restore", backend)
    control = context.control
    version = await (control.drain if drained else control.restore)(backend)
    with contextlib.suppress(GatewayError):  # if it fails, `Recovery.follow` tries again
        await context.recovery.reconcile()
    workers = await control.wait_for_workers(Topic.DRAINS, version, within=_WORKERS_TIMEOUT)
    live = all(outcome == "ok" for outcome in workers.values())
    return DrainResult(backend=backend, drained=drained, live=live, workers=workers)


async def _check(context: OperationContext, region: str, backend: str) -> None:
    """Raise `NotFound` unless the document has the backend or a DNS name of it."""
    document = await context.active.document()
    regions = {entry.name: entry for entry in document.regions}
    if region not in regions:
        raise NotFound(f"there is no region `{region}`{_choices(regions)}")
    entries = [placed for pool in regions[region].pools for placed in pool.backends]
    if any(placed.id == backend for placed in entries):
        return
    if any(placed.dns and placed.id == backend.partition("@")[0] for placed in entries):
        seen = await reported(context.control, "fleet")
        # A drained backend may be gone. It can still be restored, so that a successor at the
        # same address gets items.
        if _views(seen, backend) or backend in await context.control.drained():
            return
    known = _choices(placed.id for placed in entries)
    raise NotFound(f"there is no backend `{backend}` in region `{region}`{known}")


def _choices(names: Iterable[str]) -> str:
    """Return the end of an error message that says which names exist."""
    known = [f"`{name}`" for name in names]
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"; choose from {', '.join(known[:_MOST_NAMED])}{more}" if known else ""


def _backends_of(backend: BackendConfig, seen: Json) -> list[tuple[str, str]]:
    """Return the id and URL of each backend that an entry of the document stands for."""
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
    """Return what each worker reports about `backend`."""
    return {
        worker: view
        for worker, fleet in seen.items()
        for view in fleet or ()
        if view.get("backend") == backend
    }
