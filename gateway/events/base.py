"""What the request path asks of whoever keeps its events."""

from typing import Protocol

from gateway.types import RequestEvent


class EventPublisher(Protocol):
    """Takes one event per answered request, in order, without waiting for a network."""

    def publish(self, event: RequestEvent) -> None:
        """Keep `event`: once this returns, the end of the process does not lose it.

        Raises:
            EventLogUnavailable: the event is not kept, so the answer must not be given.
        """
        ...

    def publish_encoded(self, payload: bytes) -> None:
        """Keep an event that is msgpack already; see `gateway.events.template`.

        Raises:
            EventLogUnavailable: as above.
        """
        ...
