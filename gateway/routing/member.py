"""What the gateway knows of one endpoint."""

from enum import StrEnum

import xxhash

from backends.protocol import BackendState, ModelInfo, Report
from gateway.routing.ejection import CLEAN, Ejection
from gateway.types import Endpoint


class Health(StrEnum):
    """What the last probe said."""

    UNKNOWN = "unknown"
    READY = "ready"
    NOT_READY = "not_ready"


class Member:
    """One endpoint of the fleet; written by `Fleet` only."""

    __slots__ = (
        "calls",
        "ejection",
        "endpoint",
        "failures",
        "health",
        "in_flight",
        "models",
        "report",
        "seed",
        "state",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.seed = xxhash.xxh3_64_intdigest(endpoint.backend.encode())
        self.state: BackendState | None = None
        self.models: dict[str, ModelInfo] = {}
        self.health = Health.UNKNOWN
        self.report = Report()
        self.ejection: Ejection = CLEAN
        self.in_flight = 0
        self.calls = 0
        self.failures = 0

    def is_available(self, now: float) -> bool:
        """Tell whether the backend is ready and not ejected."""
        return self.health is Health.READY and not self.ejection.holds(now)

    def finish_time(self) -> float:
        """Return the seconds after which work given now should be done, as far as is known.

        What this process has in flight and what the backend reports queued overlap, so the longer
        of the two counts, not their sum.
        """
        report = self.report
        queued = 0.0
        if report.tokens_per_second > 0:
            queued = report.queued_tokens / report.tokens_per_second
        if report.rows_per_second > 0:
            queued = max(queued, self.in_flight / report.rows_per_second)
        return queued
