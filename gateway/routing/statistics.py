"""What the fleet tells of its endpoints."""

import msgspec

from backends.protocol import Report
from gateway.routing.member import Health, Member
from gateway.types import BackendId, RegionName


class EndpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one endpoint; `in_flight` counts items."""

    backend: BackendId
    region: RegionName
    url: str
    dns: str
    """The name by which it was found; empty where the document has its URL."""
    overflow: bool
    health: Health
    drained: bool
    missing: tuple[str, ...]
    provider: str
    in_flight: int
    ejected_for: float
    """Seconds until the end of its ejection; 0 when it is in use."""
    share: float
    """What of its speed is used: less than 1 for a while after it came back."""
    limit: float
    """Items it may have in flight before what can be shed is refused."""
    finish_time: float
    """Seconds after which an item given now should be answered."""
    calls: int
    failures: int
    report: Report


def endpoint_statistics(member: Member, now: float, slow_start: float) -> EndpointStatistics:
    """Return what is known of `member`."""
    state = member.state
    return EndpointStatistics(
        backend=member.endpoint.backend,
        region=member.endpoint.region,
        url=member.endpoint.url,
        dns=member.endpoint.dns,
        overflow=member.endpoint.overflow,
        health=member.health,
        drained=member.drained,
        missing=_missing(member),
        provider=state.provider if state else "",
        in_flight=member.in_flight,
        ejected_for=max(0.0, member.ejection.until - now),
        share=member.share(now, slow_start),
        limit=member.limit.allowed,
        finish_time=member.finish_time(now, slow_start),
        calls=member.calls,
        failures=member.failures,
        report=member.report,
    )


def _missing(member: Member) -> tuple[str, ...]:
    if member.trouble:
        return (member.trouble,)
    return tuple(member.state.missing) if member.state else ()
