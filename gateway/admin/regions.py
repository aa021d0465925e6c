"""Serves the operators' routes for regions, drains of backends, and regional shares of limits."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from gateway.admin.openapi import SOON, TENANT
from gateway.api.openapi_parts import Content, Json as Schema, Operation
from gateway.config.document import BackendConfig
from gateway.errors import ConfigurationError, DependencyUnavailable, GatewayError, NotFound
from gateway.ledger.ledger import Ledger
from gateway.ledger.regional_shares import RegionLease, RegionShare
from gateway.operations.active_document import ActiveDocumentReader
from gateway.operations.fleet_view import Json, reported
from gateway.operations.operators import Operator, Role
from gateway.routing.statistics import EndpointStatistics
from gateway.runtime.control import Control, Topic
from gateway.runtime.recovery import Recovery

_WORKERS_TIMEOUT = 5.0
_MOST_NAMED = 10
_REGION: Schema = {"description": "A region of the document.", "example": "eu"}
_BACKEND: Schema = {
    "description": "The id of a backend, or of an entry with a DNS name.",
    "example": "eu-1",
}


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


class BackendChanges(NamedTuple):
    """Drains and restores backends.

    After a change, it waits up to 5 s until every worker has applied the change.
    """

    control: Control
    active: ActiveDocumentReader
    ledger: Ledger
    recovery: Recovery

    async def change(
        self, region: str, backend: str, *, drained: bool, actor: str
    ) -> Response[DrainResult]:
        """Drain or restore a backend.

        Raises:
            NotFound: the backend is not in the region.
        """
        await self._check(region, backend)
        await self.recovery.reconcile()
        action = "backend.drain" if drained else "backend.restore"
        await asyncio.to_thread(self.ledger.audit, actor, action, backend)
        change = self.control.drain if drained else self.control.restore
        version = await change(backend)
        with contextlib.suppress(GatewayError):  # if it fails, `Recovery.follow` tries again
            await self.recovery.reconcile()
        workers = await self.control.wait_for_workers(
            Topic.DRAINS, version, within=_WORKERS_TIMEOUT
        )
        live = all(outcome == "ok" for outcome in workers.values())
        done = DrainResult(backend=backend, drained=drained, live=live, workers=workers)
        return Response(done, status_code=200 if live else 202)

    async def _check(self, region: str, backend: str) -> None:
        """Raise `NotFound` unless the document has the backend or a DNS name of it."""
        document = await self.active.document()
        regions = {entry.name: entry for entry in document.regions}
        if region not in regions:
            raise NotFound(f"there is no region `{region}`{_choices(regions)}")
        entries = [placed for pool in regions[region].pools for placed in pool.backends]
        if any(placed.id == backend for placed in entries):
            return
        if any(placed.dns and placed.id == backend.partition("@")[0] for placed in entries):
            seen = await reported(self.control, "fleet")
            # A drained backend may be gone. It can still be restored, so that a successor at the
            # same address gets items.
            if _views(seen, backend) or backend in await self.control.drained():
                return
        known = _choices(placed.id for placed in entries)
        raise NotFound(f"there is no backend `{backend}` in region `{region}`{known}")


class RegionsController(Controller):
    """Shows regions, and drains and restores backends."""

    path = "/admin/regions"

    @get(
        "/",
        opt={"role": Role.VIEWER},
        operation=Operation(
            id="list_regions",
            summary="The backends of each region",
            tag="operations",
            errors=(ConfigurationError, DependencyUnavailable),
            answers={200: (Content(type=Regions),)},
        ),
    )
    async def regions(
        self, control: NamedDependency[Control], active: NamedDependency[ActiveDocumentReader]
    ) -> Json:
        """Return the backends of each region, with the statistics of every worker."""
        seen = await reported(control, "fleet")
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

    @get(
        "/shares",
        opt={"role": Role.VIEWER},
        operation=Operation(
            id="list_shares",
            summary="The gateway regions' shares of limits",
            tag="operations",
            errors=(NotFound, DependencyUnavailable),
            about={"tenant": TENANT},
        ),
    )
    async def shares(
        self, ledger: NamedDependency[Ledger], tenant: FromQuery[str | None] = None
    ) -> RegionLimitShares:
        """Return the gateway regions' shares of limits, for one tenant or for all."""
        if tenant is not None:
            await asyncio.to_thread(ledger.accounts.tenant, tenant)
        regions = await asyncio.to_thread(ledger.shares.regions)
        rows = await asyncio.to_thread(ledger.shares.shares, tenant)
        return RegionLimitShares(regions=regions, shares=rows)

    @post(
        "/{region:str}/backends/{backend:str}/drain",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=Operation(
            id="drain_backend",
            summary="Drain a backend",
            tag="operations",
            errors=(NotFound, ConfigurationError, DependencyUnavailable),
            answers=SOON,
            about={"region": _REGION, "backend": _BACKEND},
        ),
    )
    async def drain(
        self,
        region: FromPath[str],
        backend: FromPath[str],
        backends: NamedDependency[BackendChanges],
        operator: NamedDependency[Operator],
    ) -> Response[DrainResult]:
        """Drain a backend: it finishes the items that it has, and gets no new ones.

        The status is 200 if every worker has applied the drain, and 202 if some have not yet. If
        `backend` is the id of an entry with a DNS name, all backends of this name are drained.
        """
        return await backends.change(region, backend, drained=True, actor=operator.name)

    @post(
        "/{region:str}/backends/{backend:str}/restore",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=Operation(
            id="restore_backend",
            summary="Restore a drained backend",
            tag="operations",
            errors=(NotFound, ConfigurationError, DependencyUnavailable),
            answers=SOON,
            about={"region": _REGION, "backend": _BACKEND},
        ),
    )
    async def restore(
        self,
        region: FromPath[str],
        backend: FromPath[str],
        backends: NamedDependency[BackendChanges],
        operator: NamedDependency[Operator],
    ) -> Response[DrainResult]:
        """Restore a drained backend: it gets items again, but only a few at first.

        The status is 200 if every worker has applied the change, and 202 if some have not yet.
        """
        return await backends.change(region, backend, drained=False, actor=operator.name)


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
