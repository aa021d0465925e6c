"""Serves metrics and health to monitoring systems."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sluicegate.gateway.admin.authorization import OPERATOR
from sluicegate.gateway.admin.degradation import DegradationReader
from sluicegate.gateway.api.health import Liveness
from sluicegate.gateway.api.openapi_parts import Content, Operation
from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.http.draining import DRAINING, Draining
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.fleet_view import clock_problems, merge_reports
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.redis.health import responds_to_ping
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.exemplars import with_exemplars
from sluicegate.gateway.telemetry.metrics_page import ReadMetrics, read_metrics

_NO_REPORTS = "workers: the state Redis has no worker's report; it may refuse writes"
_OPEN_METRICS = "application/openmetrics-text"


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
