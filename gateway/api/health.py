"""Whether the process lives, and whether it is ready: what is missing is named."""

from typing import Protocol

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from litestar.params import SkipValidation


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

    @get("/live", operation_id="is_live", summary="Whether the process answers")
    async def live(self) -> dict[str, str]:
        """Answer."""
        return {"status": "live"}

    @get(
        "/ready",
        operation_id="is_ready",
        summary="Whether requests can be answered",
        responses={503: ResponseSpec(Readiness, description="Not ready", generate_examples=False)},
    )
    async def ready(
        self, health: NamedDependency[SkipValidation[ReadinessSource]]
    ) -> Response[Readiness]:
        """Answer 200 when ready, else 503 with what is missing."""
        readiness = health.readiness()
        return Response(readiness, status_code=200 if readiness.ready else 503)
