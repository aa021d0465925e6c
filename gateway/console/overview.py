"""Shows the present traffic and the present incidents, and keeps the page up to date."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.response import ServerSentEvent, ServerSentEventMessage

from sluicegate.gateway.console.access import SESSION_COOKIE, AnyRequest
from sluicegate.gateway.console.fleet import FleetView, read_fleet
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.history import History
from sluicegate.gateway.console.incidents import Incident, find_incidents
from sluicegate.gateway.console.sessions import Sessions
from sluicegate.gateway.errors import DependencyUnavailable, GatewayError
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.runtime.control import Control

_CHECK_EVERY: Final = 3
"""Backends, dependencies and the session are checked at every third reading of the metrics."""
_CHECK_TIMEOUT: Final = 10.0
_MOST_MODELS: Final = 50


class IncidentReader:
    """Finds the present incidents."""

    def __init__(
        self,
        *,
        history: History,
        control: Control,
        active: ActiveDocumentReader,
        ledger: Ledger,
        cache_redis: PipelinedClient,
    ) -> None:
        self._history = history
        self._control = control
        self._active = active
        self._ledger = ledger
        self._cache_redis = cache_redis

    async def read(self) -> list[Incident]:
        """Return the incidents, the worst first. This takes at most 10 s."""
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT):
                return await find_incidents(
                    fleet=await self._fleet(),
                    traffic=self._history.traffic,
                    control=self._control,
                    ledger=self._ledger,
                    cache_redis=self._cache_redis,
                )
        except TimeoutError:
            text = "Incidents are unknown, because the state Redis or the ledger is too slow."
            return [Incident(text=text, is_bad=True)]

    async def _fleet(self) -> FleetView | None:
        try:
            return await read_fleet(self._control, self._active)
        except GatewayError:
            return None


async def provide_incidents(
    history: NamedDependency[History],
    control: NamedDependency[Control],
    active: NamedDependency[ActiveDocumentReader],
    ledger: NamedDependency[Ledger],
    cache_redis: NamedDependency[SkipValidation[PipelinedClient]],
) -> IncidentReader:
    """Return the reader. Litestar injects it into handlers."""
    return IncidentReader(
        history=history, control=control, active=active, ledger=ledger, cache_redis=cache_redis
    )


class OverviewController(Controller):
    """Serves the overview page and its live updates."""

    path = "/"
    include_in_schema = False

    @get("/")
    async def overview(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        history: NamedDependency[History],
        incidents: NamedDependency[IncidentReader],
    ) -> Response[str]:
        """Return the page."""
        context = _now(history) | {"incidents": await incidents.read()}
        return frame.render(request, "overview.html", context)

    @get("/overview/history", media_type=MediaType.JSON)
    async def history(self, history: NamedDependency[History]) -> bytes:
        """Return the points of the last half hour, for the charts."""
        return msgspec.json.encode(history.points)

    @get("/overview/live")
    async def live(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        history: NamedDependency[History],
        incidents: NamedDependency[IncidentReader],
        sessions: NamedDependency[Sessions],
    ) -> ServerSentEvent:
        """Send each new point and the updated fragments of the page as server-sent events.

        Raises:
            Overloaded: too many pages are open.
        """
        history.check_room()
        return ServerSentEvent(_events(request, frame, history, incidents, sessions))


async def _events(
    request: AnyRequest,
    frame: Frame,
    history: History,
    incidents: IncidentReader,
    sessions: Sessions,
) -> AsyncIterator[ServerSentEventMessage]:
    with history.watch():
        number = 0
        while await history.next():
            if history.points:
                yield _event("point", msgspec.json.encode(history.points[-1]).decode())
            shown = _now(history)
            for part in ("figures", "tables"):
                yield _event(part, frame.text(request, f"overview/_{part}.html", shown))
            if number % _CHECK_EVERY == 0:
                found = {"incidents": await incidents.read()}
                yield _event("incidents", frame.text(request, "overview/_incidents.html", found))
                if await _has_ended(request, sessions):
                    yield _event("ended", "")
                    return
            number += 1


async def _has_ended(request: AnyRequest, sessions: Sessions) -> bool:
    try:
        return await sessions.find(request.cookies.get(SESSION_COOKIE, "")) is None
    except DependencyUnavailable:  # operators need the page most during an outage
        return False


def _now(history: History) -> dict[str, object]:
    traffic = history.traffic
    return {
        "traffic": traffic,
        "models": traffic.models[:_MOST_MODELS],
        "hidden": max(0, len(traffic.models) - _MOST_MODELS),
    }


def _event(name: str, text: str) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=text, event=name)
