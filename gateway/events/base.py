"""Defines the interface through which the request path publishes usage events."""

from typing import Protocol

from sluicegate.gateway.types import RequestEvent


class EventPublisher(Protocol):
    """Records an event for each answered request, in order, without waiting for a network."""

    def publish(self, event: RequestEvent) -> None:
        """Record `event`. Once this call has returned, the event survives a crash of the process.

        Raises:
            EventLogUnavailable: the event was not recorded, so the response must not be sent.
        """
        ...

    def reserve_bytes(self, size: int) -> None:
        """Reserve space for an event of `size` bytes, which `publish_encoded` later records.

        Raises:
            EventLogUnavailable: there is no space.
        """
        ...

    def release_bytes(self, size: int) -> None:
        """Release the space of an event of `size` bytes that will not be recorded."""
        ...

    def publish_encoded(self, payload: bytes) -> None:
        """Record the event whose msgpack encoding is `payload`.

        The caller must have reserved exactly the size of `payload` with `reserve_bytes`.
        """
        ...
