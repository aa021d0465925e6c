"""Shows the backends of each region, and drains and restores them."""

from collections.abc import Iterable
from typing import Final

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.fleet import Backend, FleetView, read_fleet
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.history import History
from sluicegate.gateway.console.incidents import absent_reports
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.regions import DrainResult, drain_backend, restore_backend
from sluicegate.gateway.runtime.control import Control

_PAGE: Final = 100


class BackendPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the list of backends that match a filter."""

    regions: dict[str, list[Backend]]
    query: str
    attention: bool
    page: int
    pages: int
    found: int
    total: int


class BackendsController(Controller):
    """Serves the page of backends, and drains and restores them."""

    path = "/backends"
    include_in_schema = False

    @get("/")
    async def backends(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        control: NamedDependency[Control],
        active: NamedDependency[ActiveDocumentReader],
        history: NamedDependency[History],
        q: FromQuery[str] = "",
        attention: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
        page: FromQuery[int] = 1,
    ) -> Response[str]:
        """Return the page, or only its table if htmx sent the request."""
        fleet = await read_fleet(control, active)
        shown = select(fleet, query=q, attention=attention, page=page)
        is_fragment = request.headers.get("hx-request") == "true"
        template = "backends/_table.html" if is_fragment else "backends.html"
        absent = absent_reports(fleet, history.traffic)
        return frame.render(request, template, {"fleet": fleet, "shown": shown, "absent": absent})

    @post(
        "/{region:str}/{backend:str}/drain",
        status_code=200,
        opt={"role": drain_backend.role},
    )
    async def drain(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
        region: FromPath[str],
        backend: FromPath[str],
    ) -> Response[str]:
        """Stop sending items to a backend. It finishes the items that it has."""
        done = await drain_backend(context, region, backend)
        return await _row(request, frame, context, region, done)

    @post(
        "/{region:str}/{backend:str}/restore",
        status_code=200,
        opt={"role": restore_backend.role},
    )
    async def restore(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
        region: FromPath[str],
        backend: FromPath[str],
    ) -> Response[str]:
        """Start sending items to a drained backend again."""
        done = await restore_backend(context, region, backend)
        return await _row(request, frame, context, region, done)


def select(fleet: FleetView, *, query: str, attention: bool, page: int) -> BackendPage:
    """Return one page of the backends whose id, URL, pool or region contains `query`.

    If `attention` is true, only backends that are drained or not ready are included.
    """
    wanted = query.strip().lower()
    found = [
        each
        for each in fleet.backends
        if (not attention or each.mood != "good")
        and any(wanted in text.lower() for text in (each.id, each.url, each.pool, each.region))
    ]
    pages = max(1, -(-len(found) // _PAGE))
    page = min(max(1, page), pages)
    return BackendPage(
        regions=_by_region(found[(page - 1) * _PAGE : page * _PAGE]),
        query=query,
        attention=attention,
        page=page,
        pages=pages,
        found=len(found),
        total=sum(1 for _ in fleet.backends),
    )


def _by_region(backends: Iterable[Backend]) -> dict[str, list[Backend]]:
    regions: dict[str, list[Backend]] = {}
    for backend in backends:
        regions.setdefault(backend.region, []).append(backend)
    return regions


async def _row(
    request: AnyRequest, frame: Frame, context: OperationContext, region: str, done: DrainResult
) -> Response[str]:
    """Return the updated row of a backend, and a notice."""
    fleet = await read_fleet(context.control, context.active)
    shown = {"backend": fleet.find(region, done.backend), "done": done}
    return frame.render(request, "backends/_done.html", shown)
