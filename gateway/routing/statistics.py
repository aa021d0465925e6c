"""Describes endpoints for operators and readiness."""

import msgspec

from backends.protocol import GpuState, Report
from gateway.routing.member import Health, Member
from gateway.types import BackendId, RegionName


class EndpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state and counts of one endpoint; `in_flight` counts items."""

    backend: BackendId
    region: RegionName
    url: str
    dns: str
    """The DNS name from which it was resolved; empty if the document has its URL."""
    overflow: bool
    health: Health
    drained: bool
    trouble: str
    """Why the last probe got no response. Only for operators, because it may name addresses."""
    missing: tuple[str, ...]
    models: dict[str, str]
    """The revision of each model that it serves."""
    problems: dict[str, str]
    """Problems of models by name, even if another revision is served."""
    provider: str
    gpu: GpuState | None
    in_flight: int
    ejected_for: float
    """Seconds until the end of its ejection; 0 when it is not ejected."""
    share: float
    """The fraction of its speed that is used: below 1 during slow start."""
    limit: float
    """Items in flight above which sheddable requests are refused."""
    finish_time: float
    """Predicted seconds until an item sent now has a result."""
    calls: int
    failures: int
    ejections: int
    report: Report


def endpoint_statistics(member: Member, now: float, slow_start: float) -> EndpointStatistics:
    """Return the statistics of `member`."""
    state = member.state
    return EndpointStatistics(
        backend=member.endpoint.backend,
        region=member.endpoint.region,
        url=member.endpoint.url,
        dns=member.endpoint.dns,
        overflow=member.endpoint.overflow,
        health=member.health,
        drained=member.drained,
        trouble=member.trouble,
        missing=tuple(state.missing) if state else (),
        models={name: info.revision for name, info in member.models.items()},
        problems=dict(state.problems) if state else {},
        provider=state.provider if state else "",
        gpu=state.gpu if state else None,
        in_flight=member.in_flight,
        ejected_for=max(0.0, member.ejection.until - now),
        share=member.share(now, slow_start),
        limit=member.limit.allowed,
        finish_time=member.finish_time(now, slow_start),
        calls=member.calls,
        failures=member.failures,
        ejections=member.ejections,
        report=member.report,
    )
