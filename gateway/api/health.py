"""Whether the process lives, and whether it is ready: what is missing is named."""

from typing import Annotated, Protocol

import msgspec
from litestar import Controller, Response, get
from litestar.params import Dependency


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Ready when nothing is `missing`; `degraded` names what works in a lesser way."""

    ready: bool
    missing: list[str]
    degraded: list[str] = []


class ReadinessSource(Protocol):
    """Knows what the process needs."""

    def readiness(self) -> Readiness:
        """Return what is missing now."""
        ...


class HealthController(Controller):
    """Probes; no key needed."""

    path = "/health"
    opt = {"public": True}  # noqa: RUF012 - Litestar's way to say it
    tags = ("health",)

    @get("/live", summary="Whether the process answers")
    async def live(self) -> dict[str, str]:
        """Answer."""
        return {"status": "live"}

    @get("/ready", summary="Whether requests can be answered")
    async def ready(
        self, health: Annotated[ReadinessSource, Dependency(skip_validation=True)]
    ) -> Response[Readiness]:
        """Answer 200 when ready, else 503 with what is missing."""
        readiness = health.readiness()
        return Response(readiness, status_code=200 if readiness.ready else 503)
