"""Decides the health of an endpoint from probes and calls, and predicts its finish times.

An endpoint gets no traffic after a failed probe. It also gets none while it is ejected, which
happens after too many failed calls. Traffic comes back when a probe finds the endpoint ready, or
when the ejection ends. The traffic then rises gradually (slow start). If too few endpoints are
available, ejected endpoints are used, too.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec
import xxhash

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.ejection import CLEAN, Ejection, after_failure, after_success
from sluicegate.gateway.routing.limit import CAUTIOUS, UNLIMITED, after_answer
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.protocol import ModelInfo, Report, ServingState

# The seconds that an item is assumed to take until an endpoint has reported its speed.
DEFAULT_ITEM_TIME = 0.005
# At the beginning of its slow start, a recovered backend gets this fraction of its capacity.
INITIAL_SHARE = 0.1
# The weight in the average of a round trip that is longer than the average. The weight is low,
# because a longer round trip is mostly due to load on this machine.
_ROUND_TRIP_WEIGHT = 0.1
_ROWS_WEIGHT = 0.05
# The minimum idle fraction of a device. Even a device that is always busy can take more items,
# because it can run larger batches.
_MIN_IDLE = 0.05
# The measured speed replaces the speed for affinity if these speeds differ by more than this
# factor.
_AFFINITY_SLACK = 1.25
_NEVER = float("-inf")
# After this many consecutive probes without a response, a backend counts as gone.
_SILENT_PROBES = 3


class Health(StrEnum):
    """The health of a backend, as probes find it.

    If a probe times out while calls succeed, the health does not change.
    """

    UNKNOWN = "unknown"
    READY = "ready"
    NOT_READY = "not_ready"


class CallVerdict(StrEnum):
    """What the outcome of a call says about the health of the called backend."""

    OK = "ok"
    FAILED = "failed"
    UNDECIDED = "undecided"
    """The backend refused the call, or had too little time for the call. Neither says anything
    about the backend's health."""


class ProbeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a failed probe.

    If the backend did not respond, `silence` is the probe's timeout.
    """

    detail: str
    silence: float = 0.0


class EndpointState:
    """Holds the state of the endpoint `config`. Only `Fleet` changes it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.config = endpoint
        self.seed = xxhash.xxh3_64_intdigest(endpoint.backend.encode())
        self.serving_state: ServingState | None = None
        self.models: dict[str, ModelInfo] = {}
        self.health = Health.UNKNOWN
        self.trouble = ""
        """Why the last probe got no response, or an empty string."""
        self.silent_probes = 0
        """How many consecutive probes had no response, if the backend was ready before them."""
        self.report = Report()
        self.reported = _NEVER
        self.last_success = _NEVER
        """The time of the last successful call."""
        self.returned = _NEVER
        """When the endpoint's slow start began, or when it will begin because an ejection ends."""
        self.ejection: Ejection = CLEAN
        self.drained = False
        self.in_flight = 0
        self.sent_since = 0
        """The number of items that were sent after the backend's last report. The report does not
        include these items."""
        self.round_trip = 0.0
        self.rows_per_item = 1.0
        self.affinity_speed = 1.0 / DEFAULT_ITEM_TIME
        """The speed, in items a second, that affinity uses. It is updated only after a large
        change, so that equal items do not change their endpoint after every measurement."""
        self.limit = UNLIMITED
        self.calls = 0
        self.failures = 0
        self.ejections = 0

    @property
    def problems(self) -> Mapping[str, str]:
        """The problems of models and revisions that the last answered probe named."""
        return {} if self.serving_state is None else self.serving_state.problems

    def is_available(self, now: float) -> bool:
        """Return whether the backend is ready, not drained and not ejected."""
        return self.health is Health.READY and not self.drained and not self.ejection.until > now

    def observe(self, found: ServingState | ProbeFailure, now: float, took: float) -> None:
        """Update the health with the result of a probe that took `took` seconds."""
        was_ready = self.health is Health.READY
        if isinstance(found, ServingState):
            if self.health is Health.NOT_READY and found.ready:
                # The backend has recovered, so failures of its former process no longer count.
                self.ejection, self.returned, self.limit = CLEAN, now, CAUTIOUS
            self.health = Health.READY if found.ready else Health.NOT_READY
            self.serving_state, self.trouble, self.silent_probes = found, "", 0
            self.models = {info.name: info for info in found.models}
            self.record_report(found.report, now)
            self.record_round_trip(took)
            return
        self.trouble = found.detail
        if found.silence and self.last_success > now - found.silence:
            # The backend still responds to calls, so it is slow and not gone. It gets less traffic.
            self.round_trip = found.silence
            return
        # A backend that refuses connections is gone. A backend that does not respond may only be
        # busy.
        may_be_busy = found.silence and (was_ready or self.silent_probes)
        self.silent_probes = self.silent_probes + 1 if may_be_busy else 0
        # The backend's models stay in the catalog, so that callers are told that the models are
        # unavailable, and not that they are unknown.
        self.health = Health.NOT_READY

    def record_success(self, now: float, routing: RoutingConfig) -> None:
        """Record a successful call."""
        self.last_success = now
        self.ejection = after_success(self.ejection, now, routing)

    def record_failure(
        self, now: float, routing: RoutingConfig, *, may_eject: Callable[[], bool]
    ) -> None:
        """Record a failed call. After too many, eject the endpoint if `may_eject` allows this."""
        self.failures += 1
        ejection = after_failure(self.ejection, now, routing)
        if ejection.until == self.ejection.until or may_eject():
            self.ejections += ejection.until > self.ejection.until
            self.ejection = ejection
        if self.ejection.holds(now):
            self.returned = self.ejection.until

    def may_still_answer(self) -> bool:
        """Return whether the endpoint may respond to calls although probes find it not ready.

        A backend that is shutting down may still respond. So may a backend that was ready before it
        missed its last one or two probes.
        """
        is_silent = 0 < self.silent_probes < _SILENT_PROBES
        serving = self.serving_state
        is_leaving = serving is not None and serving.leaving and not self.trouble
        return is_silent or is_leaving

    def record_report(self, report: Report, now: float) -> None:
        """Store the backend's report of its load."""
        self.report = report
        self.reported = now
        self.sent_since = 0
        speed = 1.0 / self.item_time()
        if (
            not self.affinity_speed
            < speed * _AFFINITY_SLACK
            < self.affinity_speed * _AFFINITY_SLACK * _AFFINITY_SLACK
        ):
            self.affinity_speed = speed

    def record_latency(self, seconds: float) -> None:
        """Update the limit on items in flight after a result that took `seconds`."""
        self.limit = after_answer(self.limit, seconds, self.in_flight)

    def is_full(self) -> bool:
        """Return whether the items in flight have reached the limit."""
        return self.in_flight >= self.limit.allowed

    def is_returning(self, now: float, slow_start: float) -> bool:
        """Return whether the endpoint is in slow start."""
        return now - self.returned < slow_start

    def record_rows(self, rows: int, items: int) -> None:
        """Update the average number of rows of an item."""
        self.rows_per_item += _ROWS_WEIGHT * (rows / items - self.rows_per_item)

    def record_round_trip(self, took: float) -> None:
        """Update the average round trip.

        A shorter round trip replaces the average immediately. A longer round trip raises the
        average slowly.
        """
        if took < self.round_trip or not self.round_trip:
            self.round_trip = took
        else:
            self.round_trip += _ROUND_TRIP_WEIGHT * (took - self.round_trip)

    def share(self, now: float, slow_start: float) -> float:
        """Return the fraction of the endpoint's speed that may be used.

        The fraction is below 1 during slow start.
        """
        since = max(0.0, now - self.returned)
        if since >= slow_start:
            return 1.0
        return INITIAL_SHARE + (1.0 - INITIAL_SHARE) * since / slow_start

    def item_time(self) -> float:
        """Return the seconds by which one more item prolongs the backend's queue."""
        speed = self.report.rows_per_second
        return self.rows_per_item / speed if speed > 0 else DEFAULT_ITEM_TIME

    def finish_time(self, now: float, slow_start: float) -> float:
        """Return the predicted seconds until an item that is sent now has a result."""
        return self.wait(now, slow_start) + self.item_time() / self.share(now, slow_start)

    def wait(self, now: float, slow_start: float) -> float:
        """Return the predicted seconds until the backend begins to compute an item sent now.

        The prediction begins with the queue that the backend last reported. It subtracts the time
        since the report, and adds the items that this process has sent since the report. The result
        is at least the time that this process's items in flight take, because a backend that hangs
        no longer reports its queue.
        """
        item = self.item_time()
        queued = max(0.0, self.report.queued_seconds - (now - self.reported))
        busy = max(queued + self.sent_since * item, self.in_flight * item)
        return self.round_trip + busy / self.share(now, slow_start)

    def queueing(self, now: float, *, own: int) -> float:
        """Return the predicted seconds until the backend has finished its present items.

        `own` of these items belong to the caller and are not counted.
        """
        item = self.item_time()
        queued = max(0.0, self.report.queued_seconds - (now - self.reported) - own * item)
        return max(queued, (self.in_flight - own) * item)

    def headroom(self, now: float, slow_start: float) -> float:
        """Return how many more items a second the endpoint could compute."""
        idle = max(_MIN_IDLE, 1.0 - self.report.device_busy_share)
        return idle * self.share(now, slow_start) * self.config.weight / self.item_time()
