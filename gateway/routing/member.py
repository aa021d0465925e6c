"""What the gateway knows of one endpoint, and what that lets it expect."""

from enum import StrEnum

import xxhash

from backends.protocol import BackendState, ModelInfo, Report
from gateway.routing.ejection import CLEAN, Ejection
from gateway.routing.limit import UNLIMITED, after_answer
from gateway.types import Endpoint

# Seconds an item is believed to take where nothing has been measured.
UNKNOWN_ITEM = 0.005
# A backend that came back begins with this share of what it can do.
LEAST_SHARE = 0.1
# Round trips that grow are believed slowly: most of it is our own machine being busy.
_DOUBT = 0.1
_ROWS_SHARE = 0.05
# Small batches keep a device as busy as large ones that do more.
_LEAST_IDLE = 0.05
# A speed that differs by more than this factor from what affinity knows is taken up.
_PULL_SLACK = 1.25
_NEVER = float("-inf")
# After so many probes in a row without an answer a backend is taken to be gone.
_SILENT_PROBES = 3


class Health(StrEnum):
    """What the last probe said."""

    UNKNOWN = "unknown"
    READY = "ready"
    NOT_READY = "not_ready"


class Member:
    """One endpoint of the fleet; written by `Fleet` only."""

    __slots__ = (
        "calls",
        "drained",
        "ejection",
        "endpoint",
        "failures",
        "health",
        "heard",
        "in_flight",
        "limit",
        "models",
        "pull",
        "report",
        "reported",
        "returned",
        "round_trip",
        "rows_per_item",
        "seed",
        "sent_since",
        "silent_probes",
        "state",
        "trouble",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.seed = xxhash.xxh3_64_intdigest(endpoint.backend.encode())
        self.state: BackendState | None = None
        self.models: dict[str, ModelInfo] = {}
        self.health = Health.UNKNOWN
        self.trouble = ""
        """Why the last probe got no answer."""
        self.silent_probes = 0
        """Probes without an answer in a row, of a backend that was ready before them."""
        self.report = Report()
        self.reported = _NEVER
        self.heard = _NEVER
        """When it last did something useful."""
        self.returned = _NEVER
        """When it came back from where it was of no use."""
        self.ejection: Ejection = CLEAN
        self.drained = False
        self.in_flight = 0
        self.sent_since = 0
        """Items sent since the last report, which cannot know of them."""
        self.round_trip = 0.0
        self.rows_per_item = 1.0
        self.pull = 1.0 / UNKNOWN_ITEM
        """Items a second, as affinity counts them: equal items must not move at every measurement.
        """
        self.limit = UNLIMITED
        self.calls = 0
        self.failures = 0

    def is_in_use(self) -> bool:
        """Tell whether the backend is ready and not drained."""
        return self.health is Health.READY and not self.drained

    def is_available(self, now: float) -> bool:
        """Tell whether the backend is ready, in use and not ejected."""
        return self.health is Health.READY and not self.drained and not self.ejection.until > now

    def take_silence(self, *, is_silent: bool) -> None:
        """Count a probe that failed: without an answer in its time, or for a reason that is clear.

        What refuses a connection is gone; what does not answer in time may only be busy.
        """
        was_ready = self.health is Health.READY or self.silent_probes > 0
        self.silent_probes = self.silent_probes + 1 if is_silent and was_ready else 0

    def is_doubtful(self) -> bool:
        """Tell whether it was ready not long ago and has only missed a probe or two."""
        return 0 < self.silent_probes < _SILENT_PROBES and not self.drained

    def take_report(self, report: Report, now: float) -> None:
        """Keep what the backend says of its load."""
        self.report = report
        self.reported = now
        self.sent_since = 0
        speed = 1.0 / self.item_time()
        if not self.pull < speed * _PULL_SLACK < self.pull * _PULL_SLACK * _PULL_SLACK:
            self.pull = speed

    def take_latency(self, seconds: float) -> None:
        """Let the limit follow how long an answer took."""
        self.limit = after_answer(self.limit, seconds, self.in_flight)

    def is_full(self) -> bool:
        """Tell whether it has as much in flight as it answers well."""
        return self.in_flight >= self.limit.allowed

    def is_returning(self, now: float, slow_start: float) -> bool:
        """Tell whether it came back not long ago."""
        return now - self.returned < slow_start

    def take_rows(self, rows: int, items: int) -> None:
        """Learn how many rows an item has."""
        self.rows_per_item += _ROWS_SHARE * (rows / items - self.rows_per_item)

    def take_round_trip(self, took: float) -> None:
        """Learn how far away the backend is."""
        if took < self.round_trip or not self.round_trip:
            self.round_trip = took
        else:
            self.round_trip += _DOUBT * (took - self.round_trip)

    def share(self, now: float, slow_start: float) -> float:
        """Return what of its speed is used: less than all of it for a while after a return."""
        since = max(0.0, now - self.returned)
        if since >= slow_start:
            return 1.0
        return LEAST_SHARE + (1.0 - LEAST_SHARE) * since / slow_start

    def item_time(self) -> float:
        """Return the seconds that one item more keeps the backend busy."""
        speed = self.report.rows_per_second
        return self.rows_per_item / speed if speed > 0 else UNKNOWN_ITEM

    def finish_time(self, now: float, slow_start: float) -> float:
        """Return the seconds after which an item given now should be answered.

        What was queued when the backend last reported has shrunk since, and what this process has
        sent since comes on top. What it has in flight is there whatever the report says: a
        backend that has stopped reports nothing.
        """
        item = self.item_time()
        queued = max(0.0, self.report.queued_seconds - (now - self.reported))
        busy = max(queued + self.sent_since * item, self.in_flight * item)
        return self.round_trip + (busy + item) / self.share(now, slow_start)

    def headroom(self, now: float, slow_start: float) -> float:
        """Return the items a second that it could take on top of what it does."""
        idle = max(_LEAST_IDLE, 1.0 - self.report.device_busy_share)
        return idle * self.share(now, slow_start) * self.endpoint.weight / self.item_time()
