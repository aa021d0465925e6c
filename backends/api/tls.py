"""Serves TLS: its certificate, verification of clients', and renewal of both while serving.

A client without a certificate passes the handshake, so that health and metrics are open to all;
`CallAuthenticator` requires one for calls. A wrong one fails the handshake.
"""

import asyncio
import logging
import ssl
from pathlib import Path

import msgspec
from typing_extensions import override

from backends.errors import StartProblem
from backends.settings import BackendSettings
from wire.http.accepting import Edge

_log = logging.getLogger(__name__)
# Seconds between two checks of the files.
CHECK_INTERVAL = 5.0


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Names PEM files: the chain, its key (where that is another file), the CAs of clients."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None

    def signature(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when any of the files is replaced.

        Raises:
            StartProblem: one of them is not there.
        """
        files = (self.certificate, self.key, self.client_ca)
        try:
            found = [path.stat() for path in files if path is not None]
        except OSError as error:
            raise StartProblem(_missing(self, error)) from None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


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
    files = TlsFiles(
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        client_ca=settings.tls_client_ca,
    )
    return ServerTls(files)


class ServerTls(Edge):
    """TLS of a server: handshakes use the files as last read."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._signature = files.signature()
        self._context = _read(files)

    @property
    @override
    def context(self) -> ssl.SSLContext:
        return self._context

    def renew(self) -> None:
        """Use the files as they are now for new connections.

        Raises:
            StartProblem: they cannot be used; nothing has changed.
        """
        signature = self._files.signature()
        self._context = _read(self._files)
        self._signature = signature

    async def follow(
        self, reload_requested: asyncio.Event, *, interval: float = CHECK_INTERVAL
    ) -> None:
        """Renew when `reload_requested` is set, and whenever a file changed; until cancelled."""
        trouble = ""
        while True:
            was_requested = await _is_set_within(reload_requested, interval)
            reload_requested.clear()
            try:
                found = await asyncio.to_thread(self._files.signature)
                if found == self._signature and not was_requested:
                    continue
                await asyncio.to_thread(self.renew)
            except StartProblem as error:
                # Half of a rotation looks like this: the next check finds the other half.
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("the certificates stay as they were", extra={"reason": trouble})
            else:
                trouble = ""
                _log.info("the certificates were read again")


def _read(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = files.certificate
    try:
        # A password would be asked for at the terminal.
        context.load_cert_chain(path, files.key, password=lambda: "")
        if files.client_ca is not None:
            path = files.client_ca
            context.load_verify_locations(path)
            context.verify_mode = ssl.CERT_OPTIONAL
    except ssl.SSLError as error:
        raise StartProblem(_unusable(path, files.key, error)) from None
    except OSError as error:
        raise StartProblem(_missing(files, error)) from None
    return context


def _missing(files: TlsFiles, error: OSError) -> str:
    named = error.filename or f"{files.certificate}` or `{files.key}"
    return f"`{named}` cannot be read: {error.strerror}"


def _unusable(path: Path, key: Path | None, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"`{path}` and `{key or path}` do not belong together: the key is another's"
    return f"`{path}` holds no PEM that can be used, or its key is missing or has a password"


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
