"""Serves liveness and readiness probes; readiness names what is missing."""

from typing import Literal, Protocol

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from sluicegate.gateway.api.openapi_parts import Content, Operation


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process answers."""

    status: Literal["live"] = "live"
    """Always `live`."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Ready when nothing is `missing`; `degraded` names what works in a lesser way."""

    ready: bool
    """Whether nothing is missing."""
    missing: list[str]
    """What requests cannot be answered without."""
    degraded: list[str] = []
    """What is not as it should be, though requests are answered."""


class ReadinessSource(Protocol):
    """Reports the readiness of the process."""

    def readiness(self) -> Readiness:
        """Return the readiness now."""
        ...


class HealthController(Controller):
    """Probes; no key needed."""

    path = "/health"
    opt = {"public": True}  # noqa: RUF012 - Litestar's way to say it

    @get(
        "/live",
        opt={
            "operation": Operation(
                id="is_live", summary="Whether the process answers", tag="health"
            )
        },
    )
    async def live(self) -> Liveness:
        """Answer 200."""
        return Liveness()

    @get(
        "/ready",
        opt={
            "operation": Operation(
                id="is_ready",
                summary="Whether requests can be answered",
                tag="health",
                answers={
                    200: (Content(summary="Ready"),),
                    503: (Content(summary="Not ready, or too many connections"),),
                },
            )
        },
    )
    async def ready(
        self, health: NamedDependency[SkipValidation[ReadinessSource]]
    ) -> Response[Readiness]:
        """Answer 200 when ready, else 503 with what is missing."""
        readiness = health.readiness()
        return Response(readiness, status_code=200 if readiness.ready else 503)
