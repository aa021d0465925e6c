"""Finds the clients of connections and requests, and limits the number for an address."""

from collections.abc import Iterable
from typing import Final

from typing_extensions import override

from gateway.errors import GatewayError, Overloaded, RateLimited
from gateway.http.forwarded import client_of
from gateway.sockets.networks import Networks, client_network

_RETRY_AFTER: Final = 1.0


class AddressCounts:
    """Counts the connections or requests of each client address, `most` at a time.

    0 means no limit.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, client: str) -> bool:
        """Count one more of `client`, or return false if the client has reached `most`."""
        if not self.most:
            return True
        network = client_network(client)
        count = self._counts.get(network, 0)
        if count >= self.most:
            return False
        self._counts[network] = count + 1
        return True

    def remove(self, client: str) -> None:
        """Count one less of `client`, for whom `add` was true."""
        if not self.most:
            return
        network = client_network(client)
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]


_NO_BOUND: Final = AddressCounts()


class Peer:
    """The client of a connection. Without arguments, it is the peer of the socket."""

    is_proxy = False
    """Whether heads of requests say who sent them."""
    requests = _NO_BOUND
    """Counts the requests under way by their clients, each as a connection; for proxies."""

    def __init__(self, client: str = "", counts: AddressCounts | None = None) -> None:
        self.client = client
        self.refusal: GatewayError | None = None
        """Why the connection is refused."""
        self.is_connected = False
        """Whether a protocol has the connection."""
        self._counts = counts
        """Where it is counted as one of its client's."""

    def client_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the address of the client of a request."""
        del headers
        return self.client

    def close(self) -> None:
        """Note that the connection has ended; may be repeated."""
        counts, self._counts = self._counts, None
        if counts is not None:
            counts.remove(self.client)


class ProxyPeer(Peer):
    """A trusted proxy, which says in the header `field` from whom each request came."""

    is_proxy = True

    def __init__(
        self, client: str, *, trusted: Networks, field: bytes, requests: AddressCounts
    ) -> None:
        super().__init__(client)
        self._trusted = trusted
        self._field = field
        self.requests = requests

    @override
    def client_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        return client_of(self.client, headers, self._trusted, self._field)


def too_many_connections() -> Overloaded:
    """Return the error of a connection above the worker's limit."""
    detail = "There are too many connections; use fewer, or try again."
    return Overloaded(detail, retry_after=_RETRY_AFTER)


def too_many_of(most: int) -> RateLimited:
    """Return the error of a client whose address has `most` connections."""
    return RateLimited(
        f"Your address has {most} connections, the most it may; keep connections open and use them"
        " for many requests, or try again when others have ended.",
        retry_after=_RETRY_AFTER,
    )
