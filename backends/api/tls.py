"""Serves TLS: its certificate, verification of clients', and renewal of both while serving.

A client without a certificate passes the handshake, so that health and metrics are open to all;
`CallAuthenticator` requires one for calls. A wrong one fails the handshake.
"""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

from typing_extensions import override

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.settings import BackendSettings
from sluicegate.wire.http.accepting import Edge

_log = logging.getLogger(__name__)
# Seconds between two checks of the files.
CHECK_INTERVAL = 5.0


def server_tls(settings: BackendSettings) -> "ServerTls | None":
    """Return the TLS of the settings; `None` where plain HTTP is served.

    Raises:
        StartProblem: files are named but not the certificate, or they cannot be used.
    """
    if settings.tls_certificate is None:
        if settings.tls_key is not None or settings.tls_client_ca is not None:
            raise StartProblem(
                "`SLUICEGATE_BACKEND_TLS_CERTIFICATE` is missing: without a certificate no TLS is "
                "served, so a key or a client CA has no effect"
            )
        return None
    return ServerTls(
        settings.tls_certificate, key=settings.tls_key, client_ca=settings.tls_client_ca
    )


class ServerTls(Edge):
    """TLS of a server, of PEM files: handshakes use the files as last read.

    The files are the certificate's chain, its key (where that is another file), and the CAs of
    clients.

    Raises:
        StartProblem: they cannot be used.
    """

    def __init__(
        self, certificate: Path, *, key: Path | None = None, client_ca: Path | None = None
    ) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._renew()

    @property
    @override
    def context(self) -> ssl.SSLContext:
        return self._context

    async def follow(
        self, reload_requested: asyncio.Event, *, interval: float = CHECK_INTERVAL
    ) -> None:
        """Renew when `reload_requested` is set, and whenever a file changed; until cancelled."""
        trouble = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):  # `wait_for` may swallow a cancellation
                    await reload_requested.wait()
            was_requested = reload_requested.is_set()
            reload_requested.clear()
            try:
                found = await asyncio.to_thread(self._read_signature)
                if found == self._signature and not was_requested:
                    continue
                await asyncio.to_thread(self._renew)
            except StartProblem as error:
                # Half of a rotation looks like this: the next check finds the other half.
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("the certificates stay as they were", extra={"reason": trouble})
            else:
                trouble = ""
                _log.info("the certificates were read again")

    def _renew(self) -> None:
        """Use the files as they are now for new connections; if they cannot be used, no others."""
        signature = self._read_signature()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        path = self._certificate
        try:
            # A password would be asked for at the terminal.
            context.load_cert_chain(path, self._key, password=lambda: "")
            if self._client_ca is not None:
                path = self._client_ca
                context.load_verify_locations(path)
                context.verify_mode = ssl.CERT_OPTIONAL
        except ssl.SSLError as error:
            raise StartProblem(self._unusable(path, error)) from None
        except OSError as error:
            raise StartProblem(self._missing(error)) from None
        self._context, self._signature = context, signature

    def _read_signature(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when any of the files is replaced."""
        files = (self._certificate, self._key, self._client_ca)
        try:
            found = [path.stat() for path in files if path is not None]
        except OSError as error:
            raise StartProblem(self._missing(error)) from None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)

    def _missing(self, error: OSError) -> str:
        named = error.filename or f"{self._certificate}` or `{self._key}"
        return f"`{named}` cannot be read: {error.strerror}"

    def _unusable(self, path: Path, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return (
                f"`{path}` and `{self._key or path}` do not belong together: the key is another's"
            )
        return f"`{path}` holds no PEM that can be used, or its key is missing or has a password"
