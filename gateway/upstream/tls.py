"""Makes the TLS context for calls to backends, renews it, and explains failed handshakes."""

import ssl
from pathlib import Path

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.sockets.certificate_files import Signature, load_certificate, signature_of

# OpenSSL's reasons for an answer that is no handshake.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"})
_ALERT = "ALERT_"


class ClientTls:
    """Holds the TLS context for new connections to `https://` backends.

    Its PEM files are the CAs of backends (none: the system's), and a certificate to show with its
    `key`, which is left out where the certificate's file holds it, too.
    """

    def __init__(
        self,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._ca, self._certificate, self._key = ca, certificate, key
        self._files = tuple(path for path in (ca, certificate, key) if path is not None)
        self._context: ssl.SSLContext | None = None
        self._signature: Signature = ()

    @property
    def has_files(self) -> bool:
        """Whether there are files, which may change."""
        return bool(self._files)

    @property
    def context(self) -> ssl.SSLContext:
        """The context as last read; read at first use.

        Raises:
            ConfigurationError: it was never read, and the files cannot be used.
        """
        return self._context or self._read(signature_of(self._files))

    def renew(self) -> bool:
        """Read the files if they are others than those read last; return whether they are.

        Raises:
            ConfigurationError: they cannot be used; nothing has changed.
        """
        signature = signature_of(self._files)
        if signature == self._signature:  # nothing is read where there are no files
            return False
        self._read(signature)
        return True

    def _read(self, signature: Signature) -> ssl.SSLContext:
        ca, certificate, key = self._ca, self._certificate, self._key
        if key is not None and certificate is None:
            detail = "a key needs its certificate: set `SLUICEGATE_UPSTREAM_CERTIFICATE`, too"
            raise ConfigurationError(detail, file=str(key))
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:  # an `SSLError` is one
            raise ConfigurationError("it holds no certificates in PEM", file=str(ca)) from error
        if certificate is not None:
            load_certificate(context, certificate, key)
        self._context, self._signature = context, signature
        return context


def client_tls(settings: Settings) -> ClientTls:
    """Return the TLS of the files that the settings name, not yet read."""
    return ClientTls(
        ca=settings.upstream_ca,
        certificate=settings.upstream_certificate,
        key=settings.upstream_key,
    )


def explain(error: ssl.SSLError) -> str:
    """Return in words why there is no TLS with a backend."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = error.reason or "unknown reason"
    if reason in _NO_TLS:
        return "no TLS is spoken there: the URL must begin with `http://`"
    _, alert, said = reason.partition(_ALERT)
    words = (said or reason).lower().replace("_", " ")
    return f"it ended the handshake: {words}" if alert else f"the handshake failed: {words}"
