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

    def set_aside(self, size: int) -> None:
        """Make sure that an event of `size` bytes can be kept by `publish_encoded`.

        Raises:
            EventLogUnavailable: it could not be.
        """
        ...

    def give_back(self, size: int) -> None:
        """Keep no room any more for an event of `size` bytes that will not come."""
        ...

    def publish_encoded(self, payload: bytes) -> None:
        """Keep an event that is msgpack already, in room that was set aside for exactly it."""
        ...
