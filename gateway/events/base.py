"""Defines the interface by which the request path publishes usage events."""

from typing import Protocol

from gateway.types import RequestEvent


class EventPublisher(Protocol):
    """Records one event per answered request, in order, without waiting for a network."""

    def publish(self, event: RequestEvent) -> None:
        """Record `event`; after this returns, it survives the end of the process.

        Raises:
            EventLogUnavailable: the event is not recorded, so the answer must not be sent.
        """
        ...

    def reserve_bytes(self, size: int) -> None:
        """Reserve room for an event of `size` bytes, for `publish_encoded`.

        Raises:
            EventLogUnavailable: there is no room.
        """
        ...

    def release_bytes(self, size: int) -> None:
        """Release the room reserved for an event of `size` bytes that will not come."""
        ...

    def publish_encoded(self, payload: bytes) -> None:
        """Record an event in msgpack, in room that was reserved for exactly its size."""
        ...
