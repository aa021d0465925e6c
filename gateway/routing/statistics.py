"""Describes the state of endpoints, for operators and for the readiness route."""

import msgspec

from sluicegate.gateway.routing.endpoint_state import EndpointState, Health
from sluicegate.gateway.types import BackendId, RegionName
from sluicegate.wire.protocol import GpuState, ModelState, Report


class EndpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state and the counts of one endpoint. `in_flight` counts items."""

    backend: BackendId
    region: RegionName
    url: str
    dns: str
    """The DNS name that resolved to the endpoint, or an empty string if the document has its
    URL."""
    overflow: bool
    health: Health
    drained: bool
    trouble: str
    """Why the last probe got no response. Only operators see this text, because it may contain
    addresses."""
    missing: tuple[str, ...]
    models: dict[str, str]
    """The revision of each model that the endpoint serves."""
    problems: dict[str, str]
    """The problem of each broken model, even if another revision of the model is served."""
    states: dict[str, ModelState]
    """The state of each model, if the endpoint loads models on demand."""
    provider: str
    gpu: GpuState | None
    in_flight: int
    ejected_for: float
    """Seconds until the endpoint's ejection ends, or 0 if it is not ejected."""
    share: float
    """The fraction of the endpoint's speed that may be used. It is below 1 in slow start."""
    limit: float
    """Sheddable requests are refused while at least this many items are in flight."""
    finish_time: float
    """Predicted seconds until an item that is sent now has a result."""
    calls: int
    failures: int
    ejections: int
    report: Report


def endpoint_statistics(
    endpoint: EndpointState, now: float, slow_start: float
) -> EndpointStatistics:
    """Return the statistics of `endpoint`."""
    serving = endpoint.serving_state
    return EndpointStatistics(
        backend=endpoint.config.backend,
        region=endpoint.config.region,
        url=endpoint.config.url,
        dns=endpoint.config.dns,
        overflow=endpoint.config.overflow,
        health=endpoint.health,
        drained=endpoint.drained,
        trouble=endpoint.trouble,
        missing=tuple(serving.missing) if serving else (),
        models={name: info.revision for name, info in endpoint.models.items()},
        problems=dict(serving.problems) if serving else {},
        states=dict(serving.states) if serving else {},
        provider=serving.provider if serving else "",
        gpu=serving.gpu if serving else None,
        in_flight=endpoint.in_flight,
        ejected_for=max(0.0, endpoint.ejection.until - now),
        share=endpoint.share(now, slow_start),
        limit=endpoint.limit.allowed,
        finish_time=endpoint.finish_time(now, slow_start),
        calls=endpoint.calls,
        failures=endpoint.failures,
        ejections=endpoint.ejections,
        report=endpoint.report,
    )
