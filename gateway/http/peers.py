"""Finds the clients of connections and requests, and limits the number for an address.

Trusted proxies say in a header of a request, `X-Forwarded-For` or `Forwarded` (RFC 7239), who its
client is. Each proxy appends the address that it was called from, so the list is read from its end:
the client is the first address that is no trusted proxy's. Anybody may have written the
entries before it, or a whole header that no proxy writes.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

from typing_extensions import override

from sluicegate.gateway.sockets.networks import Networks, client_network, parse_address
from sluicegate.wire.http.messages import Headers
from sluicegate.wire.http.peers import Peer
from sluicegate.wire.http.refusals import Refusal

FORWARDED: Final = b"forwarded"
# A token, or a quoted string, in which a comma or semicolon separates nothing.
_PAIR: Final = re.compile(
    r"[ \t]*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)="
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^",; \t]+))[ \t]*(?P<end>[,;]|$)'
)
_NODE: Final = re.compile(
    r"\[(?P<v6>[^\]]+)\](?::[0-9]+)?|(?P<v4>[0-9.]+)(?::[0-9]+)?|(?P<bare>.*)"
)
_MOST_HOPS: Final = 32


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


def client_of(peer: str, headers: Headers, trusted: Networks, field: bytes) -> str:
    """Return the address of the client whose request came from `peer`.

    It is `peer` where that is not trusted. `field` is the header that the proxies write. Where that
    says nothing readable, the client is the last address that is known for sure.
    """
    if peer not in trusted:
        return peer
    text = ",".join([value.decode("latin-1") for name, value in headers if name == field])
    nodes = list(_forwarded_nodes(text)) if field == FORWARDED else text.split(",")
    client = peer
    for node in nodes[: -_MOST_HOPS - 1 : -1]:
        address = _address(node)
        if not address:
            return client
        client = address
        if client not in trusted:
            return client
    return client


def _forwarded_nodes(text: str) -> Iterator[str]:
    """Yield what each element says of `for`; empty where it says nothing."""
    at, node = 0, ""
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:  # where this element ends, nobody knows: nor what came before it
            yield ""
            at, node = text.find(",", at) + 1 or len(text), ""
            continue
        if pair["name"].lower() == "for":
            quoted = pair["quoted"]
            node = pair["token"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = pair.end()
        if pair["end"] != ";":
            yield node
            node = ""


def _address(node: str) -> str:
    found = _NODE.fullmatch(node.strip())
    text = "" if found is None else found["v6"] or found["v4"] or found["bare"] or ""
    address = parse_address(text)
    return "" if address is None else str(address)
