"""Serves TLS on a listener: its certificate, verification of clients', and renewal of both.

A client without a certificate passes the handshake where a CA of clients is set, so that probes and
Prometheus need none; the application requires one. A wrong one fails the handshake.
"""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.errors import ConfigurationError
from gateway.settings import Settings
from gateway.sockets.certificate_files import (
    Signature,
    expiry_of,
    load_certificate,
    signature_of,
)

_HTTP: Final = ("http/1.1",)
HTTP_2: Final = ("h2",)


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


def customers_tls(settings: Settings) -> ListenerTls | None:
    """Return the TLS of the customers' listeners; `None` where they have none.

    Raises:
        ConfigurationError: the files cannot be used.
    """
    return _tls("TLS", settings.tls_certificate, settings.tls_key)


def operators_tls(settings: Settings) -> ListenerTls | None:
    """Return the TLS of the operators' listener; `None` where it has none.

    Raises:
        ConfigurationError: the files cannot be used.
    """
    own = settings.admin_tls_certificate, settings.admin_tls_key, settings.admin_tls_client_ca
    return _tls("ADMIN_TLS", *own)


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
