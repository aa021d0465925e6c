"""Builds the console: its routes, their dependencies, and its background task."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from litestar import Controller, Response, Router, get
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.response import Redirect
from litestar.types import ASGIApp

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.console import guard_history
from sluicegate.gateway.console.access import PUBLIC, AnyRequest, ConsoleAccess
from sluicegate.gateway.console.assets import Assets, static_file
from sluicegate.gateway.console.frame import ROOT, Frame
from sluicegate.gateway.console.history import History
from sluicegate.gateway.console.incidents import GAUGES
from sluicegate.gateway.console.login import LoginController
from sluicegate.gateway.console.login_limits import LoginLimiter
from sluicegate.gateway.console.margins import MarginReader
from sluicegate.gateway.console.models import provide_models
from sluicegate.gateway.console.overview import provide_incidents
from sluicegate.gateway.console.pages import PAGES
from sluicegate.gateway.console.playground_client import PlaygroundClient
from sluicegate.gateway.console.sessions import Sessions
from sluicegate.gateway.console.traffic import METRICS
from sluicegate.gateway.errors import NotFound
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.metric_reading import MetricReader, Series
from sluicegate.gateway.telemetry.restarts import read_restarts

_STATIC = Path(__file__).parent / "static"


class Console:
    """Adds web pages to the operators' listener. Implements `Extension`.

    Its handlers can use the listener's dependencies and the console's own dependencies.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        directory: OperatorDirectory,
        clock: Callable[[], float] = time.monotonic,
        history: History | None = None,
    ) -> None:
        assets = Assets(_STATIC)
        frame = Frame(assets=assets, pages=PAGES, region=settings.region)
        sessions = Sessions(operators=directory, clock=clock)
        access = ConsoleAccess(
            sessions=sessions, wants_certificate=settings.admin_tls_client_ca is not None
        )
        self._history = history or History(
            reader=ConsoleMetrics(settings),
            clock=time.time,  # noqa: TID251 - shown to operators
        )
        objects: dict[str, object] = {
            "assets": assets,
            "frame": frame,
            "sessions": sessions,
            "limiter": LoginLimiter(clock=clock),
            "playground": PlaygroundClient(settings),
            "margins": MarginReader(placement=settings.placement),
            "history": self._history,
        }
        pages = _router(frame=frame, access=access, objects=objects)
        self.routers = (Router("/", route_handlers=[to_console]), pages)

    async def run(self, stop: asyncio.Event) -> None:
        """Record the history of traffic until `stop` is set."""
        await self._history.run(stop)


@get("/", opt=PUBLIC, include_in_schema=False)
async def to_console() -> Redirect:
    """Redirect the root of the operators' listener to the console."""
    return Redirect(ROOT)


@get("/{path:path}", include_in_schema=False)
async def no_page(path: FromPath[str]) -> None:  # noqa: ARG001 - Litestar passes it by this name
    """Refuse an unknown path below the console."""
    raise NotFound("There is no such page. Choose one from the menu.")


class ConsoleMetrics:
    """Reads the metrics of all processes, and the supervisor's counts of restarts."""

    def __init__(self, settings: Settings) -> None:
        self._files = MetricReader(
            settings.metrics_dir, (*METRICS, *GAUGES, *guard_history.METRICS)
        )
        self._folder = settings.data_dir

    def read(self) -> dict[Series, float]:
        """Return the value of each series. The call blocks."""
        found = self._files.read()
        for each in read_restarts(self._folder):
            labels = (("reason", each.reason), ("role", each.role))
            found["sluicegate_process_restarts_total", labels] = float(each.count)
        return found


def _router(*, frame: Frame, access: ConsoleAccess, objects: dict[str, object]) -> Router:
    # Middleware and handlers are passed as functions, because Litestar would copy objects.
    def guarded(app: ASGIApp) -> ASGIApp:
        return access(app)

    def problem(request: AnyRequest, error: Exception) -> Response[Any]:
        return frame.problem(request, error)

    return Router(
        ROOT,
        route_handlers=[static_file, LoginController, *_controllers(), no_page],
        dependencies={
            **{name: _provide(value) for name, value in objects.items()},
            "incidents": Provide(provide_incidents),
            "models": Provide(provide_models),
        },
        middleware=[guarded],
        exception_handlers={Exception: problem, HTTPException: problem},
        opt=PUBLIC,
    )


def _controllers() -> Iterator[type[Controller]]:
    for page in PAGES:
        yield page.controller
        yield from page.others


def _provide(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)
