"""Holds the steps of a listener before HTTP begins: TLS, proxies, and limits of addresses."""

import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from gateway.http.listener_settings import trusted_proxies
from gateway.http.listener_tls import HTTP_2, ListenerTls, customers_tls, operators_tls
from gateway.http.peers import AddressCounts, ProxyPeer, too_many_of
from gateway.settings import Settings
from gateway.sockets.certificate_files import LOOK_INTERVAL, follow_files
from gateway.sockets.networks import Networks
from gateway.sockets.proxy_protocol import receive_proxy_header
from gateway.telemetry.edge_metrics import EdgeMetrics
from wire.http.accepting import Edge
from wire.http.peers import Peer

_A_YEAR: Final = 31_536_000
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


class ListenerEdge(Edge):
    """Holds the steps of a listener before HTTP. By default there are none."""

    def __init__(
        self,
        *,
        tls: ListenerTls | None = None,
        trusted: Networks | None = None,
        proxy_protocol: bool = False,
        forwarded_field: str = "x-forwarded-for",
        per_address: int = 0,
        hsts: int | None = None,
        metrics: EdgeMetrics | None = None,
    ) -> None:
        self.tls = tls
        self.metrics = metrics or EdgeMetrics()
        self.counts = AddressCounts(per_address)
        """Connections by the address of their client."""
        self._trusted = trusted or Networks()
        self._has_header = proxy_protocol
        self._field = forwarded_field.encode()
        self._hsts = (_A_YEAR if tls is not None else 0) if hsts is None else hsts

    def of_calls(self) -> "ListenerEdge":
        """Return the edge of the gRPC listener beside this one.

        Connections of an address over both listeners count together. Balancers of gRPC send no
        header of the PROXY protocol.
        """
        tls = None if self.tls is None else self.tls.speaking(HTTP_2)
        found = ListenerEdge(tls=tls, trusted=self._trusted, metrics=self.metrics)
        found.counts = self.counts
        return found

    @property
    @override
    def context(self) -> ssl.SSLContext | None:
        return None if self.tls is None else self.tls.context

    @property
    def is_plain(self) -> bool:
        """Whether HTTP begins with the first byte of a connection."""
        return not (self.tls or self._trusted or self._has_header or self.counts.most)

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The headers of all answers."""
        if not self._hsts:
            return (_NOSNIFF,)
        return (_NOSNIFF, (b"strict-transport-security", b"max-age=%d" % self._hsts))

    @override
    async def peer_of(self, connection: socket.socket, address: str) -> Peer:
        """See `Edge`. With the PROXY protocol a trusted proxy says first whose connection it is."""
        if address in self._trusted:
            client = await receive_proxy_header(connection) if self._has_header else address
            if not client:  # a probe of its own, or a stranger without an address: believe no head
                return Peer(address)
            if client in self._trusted:
                return ProxyPeer(
                    client,
                    trusted=self._trusted,
                    field=self._field,
                    requests=self.counts,
                )
            address = client
        if self.counts.add(address):
            return Peer(address, on_close=partial(self.counts.remove, address))
        peer = Peer(address)
        peer.refusal = too_many_of(self.counts.most)
        return peer

    @override
    def refused(self, cause: str) -> None:
        self.metrics.refused(cause)

    async def follow(self, interval: float = LOOK_INTERVAL) -> None:
        """Read the certificate when its files change, until cancelled."""
        tls = self.tls
        if tls is None:
            return
        self.metrics.certificate(tls.expires, is_usable=True)
        await follow_files(
            tls.renew,
            interval,
            on_outcome=lambda is_usable: self.metrics.certificate(tls.expires, is_usable=is_usable),
        )


def customers_edge(settings: Settings, metrics: EdgeMetrics) -> ListenerEdge:
    """Return the edge of the customers' listener.

    Raises:
        ConfigurationError: files or networks cannot be used.
    """
    return ListenerEdge(
        tls=customers_tls(settings),
        trusted=trusted_proxies(settings),
        proxy_protocol=settings.proxy_protocol,
        forwarded_field=settings.forwarded_header,
        per_address=settings.max_connections_per_address,
        hsts=settings.hsts_max_age,
        metrics=metrics,
    )


def operators_edge(settings: Settings, metrics: EdgeMetrics) -> ListenerEdge:
    """Return the edge of the operators' listener.

    Raises:
        ConfigurationError: files cannot be used.
    """
    return ListenerEdge(tls=operators_tls(settings), hsts=settings.hsts_max_age, metrics=metrics)
