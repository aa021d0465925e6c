"""Holds who is at the other end of a connection."""

from collections.abc import Callable

from sluicegate.wire.http.messages import Headers
from sluicegate.wire.http.refusals import Refusal


def too_many_connections() -> Refusal:
    """Return the refusal of a connection above the limit of its listener."""
    return Refusal(503, "There are too many connections; use fewer, or try again.")


class Peer:
    """The client of a connection. Without an address, it is the peer of the socket."""

    is_proxy = False
    """Whether heads of requests say who sent them."""
    counts_requests = False
    """Whether the requests under way are counted for their clients."""

    def __init__(self, address: str = "", *, on_close: Callable[[], None] | None = None) -> None:
        self.address = address
        self.refusal: Refusal | None = None
        """Why the connection is refused."""
        self.is_connected = False
        """Whether a protocol has the connection."""
        self._on_close = on_close

    def begin_request(self, headers: Headers) -> str:
        """Count a request, and return the address of its client.

        Raises:
            Refusal: the client has too many. The request is not counted.
        """
        del headers
        return self.address

    def end_request(self) -> None:
        """Count the oldest request no more."""

    def close(self) -> None:
        """Note that the connection has ended; may be repeated."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
