"""Serves TLS: its certificate, verification of clients', and renewal of both while serving.

A client without a certificate passes the handshake, so that health and metrics are open to all;
`CallAuthenticator` requires one for calls. A wrong one fails the handshake.
"""

import asyncio
import logging
import ssl
import time
from pathlib import Path

import msgspec
from typing_extensions import override

from backends.errors import StartProblem
from backends.settings import BackendSettings

_log = logging.getLogger(__name__)
# Seconds between two checks of the files, and between two equal log lines.
CHECK_INTERVAL = 5.0
_LOG_INTERVAL = 60.0
# What OpenSSL calls bytes that begin no handshake.
_PLAIN = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"})


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


class ServerTls:
    """Provides a server's context, whose handshakes use the files as last read."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._refusals = _RefusalLog()
        self._signature = files.signature()
        self.context = _DelegatingContext(ssl.PROTOCOL_TLS_SERVER)
        """Passed to a server once; renewals replace the context behind it."""
        self.context.actual = _read(files, self._refusals)

    def renew(self) -> None:
        """Use the files as they are now for new connections.

        Raises:
            StartProblem: they cannot be used; nothing has changed.
        """
        signature = self._files.signature()
        self.context.actual = _read(self._files, self._refusals)
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


class _DelegatingContext(ssl.SSLContext):
    """Delegates each handshake to another context, which may be replaced at any time.

    Servers take a context when they begin to listen, and a context cannot forget a CA.
    """

    actual: ssl.SSLContext

    @override
    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.actual.wrap_bio(
            incoming,
            outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
            session=session,
        )


class _RefusalLog:
    """Logs why handshakes fail, each reason once a minute: probes come twice a second."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def log(self, error: ssl.SSLError) -> None:
        """Log one line on a failed handshake."""
        reason, now = explain(error), time.monotonic()
        # The reasons are OpenSSL's: a closed set.
        if now - self._logged.get(reason, float("-inf")) >= _LOG_INTERVAL:
            self._logged[reason] = now
            _log.warning("a TLS handshake failed", extra={"reason": reason})


class _ReportingContext(ssl.SSLContext):
    refusals: _RefusalLog


class _ReportingHandshake(ssl.SSLObject):
    """Logs a failed handshake, after which the event loop silently closes the connection."""

    @override
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if isinstance(self.context, _ReportingContext):
                self.context.refusals.log(error)
            raise


def explain(error: ssl.SSLError) -> str:
    """Return in words why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if error.reason in _PLAIN:
        return "plain HTTP came where TLS is spoken: the URL must begin with `https://`"
    if error.reason in _NO_TLS:
        return "what came is no TLS"
    words = (error.reason or "unknown reason").lower().replace("_", " ")
    return f"the handshake failed: {words}"


def _read(files: TlsFiles, refusals: _RefusalLog) -> ssl.SSLContext:
    context = _ReportingContext(ssl.PROTOCOL_TLS_SERVER)
    context.refusals = refusals
    context.sslobject_class = _ReportingHandshake
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
