"""Builds usage events and provides a publisher that records them."""

from pathlib import Path

import msgspec

from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events.reader import LogReader, list_logs
from sluicegate.gateway.types import KeyId, RequestEvent, RequestId, TenantId, Usage

START = 1_788_220_800_000_000_000
"""2026-09-01, in nanoseconds."""


def make_event(
    number: int,
    *,
    time: int = START,
    tenant: str = "acme",
    key: str = "key_1",
    model: str = "sentiment",
    usage: Usage | None = None,
) -> RequestEvent:
    """Return the event of request `number`: one item, a hit, unless `usage` says otherwise."""
    return RequestEvent(
        id=RequestId(f"req_{number:012d}"),
        time=time,
        tenant=TenantId(tenant),
        key=KeyId(key),
        model=model,
        task="classify",
        status=200,
        usage=usage or Usage.of(hit=1),
        duration=0.001,
        region="eu",
        revision="9f2c51d0a7be",
    )


def make_run(first: str, *, count: int, usage: Usage | None = None) -> RequestEvent:
    """Return the run of `count` requests whose ids begin with `first`."""
    event = make_event(1, usage=usage)
    return msgspec.structs.replace(event, id=RequestId(first), count=count)


def events_in(directory: Path) -> list[RequestEvent]:
    """Return the events in all event logs below `directory`."""
    runs = [LogReader(log).read(1000) for log in list_logs(directory)]
    payloads = [payload for run in runs if run is not None for payload in run.payloads]
    return [msgspec.msgpack.decode(payload, type=RequestEvent) for payload in payloads]


class RecordedEvents:
    """An `EventPublisher` in memory; `failing` makes it refuse."""

    def __init__(self) -> None:
        self.events: list[RequestEvent] = []
        self.failing = False
        self._promised: list[int] = []

    def publish(self, event: RequestEvent) -> None:
        """Keep `event`."""
        if self.failing:
            raise EventLogUnavailable("the event log is made to fail")
        self.events.append(event)

    def reserve_bytes(self, size: int) -> None:
        """Refuse here what would be refused."""
        if self.failing:
            raise EventLogUnavailable("the event log is made to fail")
        self._promised.append(size)

    def release_bytes(self, size: int) -> None:
        """Forget a promise."""
        self._promised.remove(size)

    def publish_encoded(self, payload: bytes) -> None:
        """Keep the event that `payload` is."""
        self._promised.remove(len(payload))
        self.events.append(msgspec.msgpack.decode(payload, type=RequestEvent))
