"""Counts runs of equal cache hits.

A run has consecutive request ids and is recorded as one event.
"""

from collections.abc import Iterator

from sluicegate.gateway.events.template import EventTemplate
from sluicegate.gateway.telemetry.guard_verdicts import Counts
from sluicegate.gateway.types import ID_DIGITS, RequestEvent


class HitRun:
    """Counts hits that have the same caller, route, task, model, revision and cache tier.

    Request ids are consecutive from `first` on. `count` is the number of hits in the present
    event-loop iteration, and `max_count` is the most hits that an iteration can have. `started` is
    when the first hit of the iteration began, on the event loop's clock. `began` is the same moment
    on a more precise clock. `route` and `source` are labels of metrics. Each hit adds `counts` to
    metrics. `is_plain` is false if metrics count more of a hit than its request and its item.

    `reserved_ids` is the number of reserved ids that are left. When it is 0,
    `gateway.api.request_events` reserves new ids. `ids_at_once` is the number of ids to reserve. It
    doubles with each reservation, up to a maximum.
    """

    __slots__ = (
        *("arm", "began", "count", "counts", "event", "first", "ids_at_once", "is_plain"),
        *("max_count", "model", "pattern", "reserved_ids", "revision", "route", "source"),
        "started",
    )

    def __init__(
        self,
        event: RequestEvent,
        *,
        route: str = "",
        source: str = "memory_hit",
        counts: Counts = (),
    ) -> None:
        self.event = EventTemplate(event)
        self.route = route
        self.source = source
        self.pattern = event
        """The event that all these hits have in common, except for id, time and duration."""
        self.model = event.model
        self.revision = event.revision
        self.arm = event.arms[0].arm if event.arms else ""
        self.counts = counts
        self.is_plain = not self.arm and not counts
        self.first = self.reserved_ids = self.ids_at_once = self.max_count = self.count = 0
        self.started = self.began = 0.0

    def add(self) -> int:
        """Count one more hit, and return the number for its request id.

        The caller must have reserved space for the event of the run.
        """
        number = self.first + self.count
        self.count += 1
        return number


def ids_of(event: RequestEvent) -> Iterator[str]:
    """Return the ids of the requests in the run of `event`."""
    return ids_from(event.id, event.count)


def ids_from(first: str, count: int) -> Iterator[str]:
    """Yield `count` consecutive ids, from `first` on."""
    yield first
    if count > 1:
        stem, start = first[:-ID_DIGITS], int(first[-ID_DIGITS:], 16)
        for number in range(start + 1, start + count):
            yield f"{stem}{number:0{ID_DIGITS}x}"
