"""Finds the clients of connections and requests, and limits the number for an address."""

from collections import deque

from typing_extensions import override

from gateway.http.forwarded import client_of
from gateway.sockets.networks import Networks, client_network
from wire.http.messages import Headers
from wire.http.peers import Peer
from wire.http.refusals import Refusal


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


class ProxyPeer(Peer):
    """A trusted proxy, which says in the header `field` from whom each request came.

    Each request that is under way counts in `requests` as a connection of its client.
    """

    is_proxy = True

    def __init__(
        self, address: str, *, trusted: Networks, field: bytes, requests: AddressCounts
    ) -> None:
        super().__init__(address)
        self._trusted = trusted
        self._field = field
        self._requests = requests
        self.counts_requests = bool(requests.most)
        self._clients = deque[str]()
        """The clients of the requests under way."""

    @override
    def begin_request(self, headers: Headers) -> str:
        client = client_of(self.address, headers, self._trusted, self._field)
        if not self._requests.add(client):
            raise too_many_of(self._requests.most)
        self._clients.append(client)
        return client

    @override
    def end_request(self) -> None:
        if self._clients:
            self._requests.remove(self._clients.popleft())

    @override
    def close(self) -> None:
        while self._clients:
            self.end_request()


def too_many_of(most: int) -> Refusal:
    """Return the refusal of a client whose address has `most` connections."""
    return Refusal(
        429,
        f"Your address has {most} connections, the most it may; keep connections open and use them"
        " for many requests, or try again when others have ended.",
    )
