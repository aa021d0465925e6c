"""Holds the steps of a listener before HTTP begins: TLS, proxies, and limits of addresses.

A client without a certificate passes the handshake where a CA of clients is set, so that probes and
Prometheus need none; the application requires one. A wrong one fails the handshake.
"""

import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from typing_extensions import override

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.peers import AddressCounts, ProxyPeer, too_many_of
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.sockets.certificate_files import (
    LOOK_INTERVAL,
    Signature,
    expiry_of,
    follow_files,
    load_certificate,
    signature_of,
)
from sluicegate.gateway.sockets.networks import Networks
from sluicegate.gateway.sockets.proxy_protocol import receive_proxy_header
from sluicegate.gateway.telemetry.edge_metrics import EdgeMetrics
from sluicegate.wire.http.accepting import Edge
from sluicegate.wire.http.peers import Peer

_HTTP: Final = ("http/1.1",)
HTTP_2: Final = ("h2",)
_A_YEAR: Final = 31_536_000
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


class ListenerTls:
    """Holds what new connections of a listener use, of PEM files as last read.

    `key` is left out where the certificate's file holds it, too.

    Raises:
        ConfigurationError: the files cannot be used.
    """

    context: ssl.SSLContext
    expires: float
    """When the certificate expires, in seconds since the epoch."""

    def __init__(
        self,
        certificate: Path,
        key: Path | None = None,
        *,
        client_ca: Path | None = None,
        protocols: Sequence[str] = _HTTP,
    ) -> None:
        self.certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._protocols = protocols
        self._files = tuple(each for each in (certificate, key, client_ca) if each is not None)
        self._signature: Signature = ()
        self.renew()

    def speaking(self, protocols: Sequence[str]) -> "ListenerTls":
        """Return TLS from the same files for a listener of other protocols.

        Raises:
            ConfigurationError: the files cannot be used any more.
        """
        own = self.certificate, self._key
        return ListenerTls(*own, client_ca=self._client_ca, protocols=protocols)

    def renew(self) -> bool:
        """Use the files as they are now for new connections; return whether they are others.

        Raises:
            ConfigurationError: they cannot be used; nothing has changed.
        """
        signature = signature_of(self._files)
        if signature == self._signature:
            return False
        context = self._read()
        try:
            chain = self.certificate.read_bytes()
            expires = expiry_of(chain.decode("latin-1"))
        except OSError as error:  # it was replaced at this moment: the next look finds what came
            detail = f"the file cannot be read: {error.strerror}"
            raise ConfigurationError(detail, file=str(error.filename)) from error
        except ValueError as error:  # it is not what was loaded a moment ago
            detail = f"the certificate cannot be read: {error}"
            raise ConfigurationError(detail, file=str(self.certificate)) from error
        self.context, self.expires, self._signature = context, expires, signature
        return True

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(self._protocols)
        load_certificate(context, self.certificate, self._key)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:  # an `SSLError` is one
                file = str(self._client_ca)
                raise ConfigurationError("it holds no certificates in PEM", file=file) from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


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


def customers_edge(settings: Settings, metrics: EdgeMetrics | None = None) -> ListenerEdge:
    """Return the edge of the customers' listener.

    Raises:
        ConfigurationError: files or networks cannot be used.
    """
    trusted = Networks(settings.trusted_proxies)
    if settings.proxy_protocol and not trusted:
        raise ConfigurationError(
            "`SLUICEGATE_PROXY_PROTOCOL` needs the addresses of the proxies: set"
            " `SLUICEGATE_TRUSTED_PROXIES`"
        )
    return ListenerEdge(
        tls=_tls("TLS", settings.tls_certificate, settings.tls_key),
        trusted=trusted,
        proxy_protocol=settings.proxy_protocol,
        forwarded_field=settings.forwarded_header,
        per_address=settings.max_connections_per_address,
        hsts=settings.hsts_max_age,
        metrics=metrics,
    )


def operators_edge(settings: Settings, metrics: EdgeMetrics | None = None) -> ListenerEdge:
    """Return the edge of the operators' listener.

    Raises:
        ConfigurationError: files cannot be used.
    """
    own = settings.admin_tls_certificate, settings.admin_tls_key, settings.admin_tls_client_ca
    tls = _tls("ADMIN_TLS", *own)
    return ListenerEdge(tls=tls, hsts=settings.hsts_max_age, metrics=metrics)


def check_listeners(settings: Settings) -> None:
    """Check certificates and networks of both listeners.

    Raises:
        ConfigurationError: they cannot be used.
    """
    customers_edge(settings)
    operators_edge(settings)


def _tls(
    name: str, certificate: Path | None, key: Path | None, client_ca: Path | None = None
) -> ListenerTls | None:
    if certificate is not None:
        return ListenerTls(certificate, key, client_ca=client_ca)
    if key is not None or client_ca is not None:
        raise ConfigurationError(
            f"`SLUICEGATE_{name}_CERTIFICATE` is missing: without a certificate no TLS is served,"
            " so a key or a client CA has no effect"
        )
    return None
