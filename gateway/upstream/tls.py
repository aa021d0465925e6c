"""Makes the TLS context for calls to backends, renews it, and explains failed handshakes."""

import asyncio
import logging
import ssl
from pathlib import Path

from gateway.errors import ConfigurationError
from gateway.settings import Settings

_log = logging.getLogger(__name__)
# Seconds between two checks of the files.
LOOK_INTERVAL = 5.0
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
        self._signature: tuple[tuple[int, int, int], ...] = ()

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
        return self._context or self._take(self._signature_now())

    def renew(self) -> bool:
        """Read the files if they are others than those read last; return whether they are.

        Raises:
            ConfigurationError: they cannot be used; nothing has changed.
        """
        signature = self._signature_now()
        if signature == self._signature:  # nothing is read where there are no files
            return False
        self._take(signature)
        return True

    def _signature_now(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(map(_signature, self._files))

    def _take(self, signature: tuple[tuple[int, int, int], ...]) -> ssl.SSLContext:
        self._context, self._signature = self._read(), signature
        return self._context

    def _read(self) -> ssl.SSLContext:
        ca, certificate, key = self._ca, self._certificate, self._key
        if key is not None and certificate is None:
            detail = "a key needs its certificate: set `SLUICEGATE_UPSTREAM_CERTIFICATE`, too"
            raise ConfigurationError(detail, file=str(key))
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:  # an `SSLError` is one
            raise ConfigurationError("it holds no certificates in PEM", file=str(ca)) from error
        if certificate is not None:
            _show(context, certificate, key)
        return context


def _show(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Have `context` show a certificate to whoever asks for one."""
    try:
        # An empty password, else OpenSSL would prompt for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            detail = f"it does not belong to the key in `{key or certificate}`"
        else:
            detail = "it holds no certificate in PEM, or its key is missing or has a password"
        raise ConfigurationError(detail, file=str(certificate)) from error
    except OSError as error:  # it went since it was looked at, or is not for us to read
        named = str(certificate if key is None else f"{certificate}` or `{key}")
        detail = f"the file cannot be read: {error.strerror}"
        raise ConfigurationError(detail, file=named) from error


async def follow_files(tls: ClientTls, interval: float) -> None:
    """Have `tls` read files that changed, every `interval` seconds, until cancelled."""
    trouble = ""
    while True:
        await asyncio.sleep(interval)
        try:
            is_new = await asyncio.to_thread(tls.renew)
        except ConfigurationError as error:
            # Half of a rotation looks like this: the next look finds the other half.
            reason = f"{error.file}: {error.detail}"
            if reason != trouble:
                _log.warning("the certificates stay as they were", extra={"reason": reason})
            trouble = reason
        else:
            trouble = ""
            if is_new:
                _log.info("the certificates were read again")


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


def _signature(path: Path) -> tuple[int, int, int]:
    """Return what is another after the file was replaced."""
    try:
        found = path.stat()
    except OSError as error:
        detail = f"the file cannot be read: {error.strerror}"
        raise ConfigurationError(detail, file=str(path)) from error
    return found.st_mtime_ns, found.st_ino, found.st_size
