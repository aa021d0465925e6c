"""Turns what the HTTP parser signals into events and errors of the gateway."""

import logging
from collections.abc import Callable

import httptools

from gateway.errors import GatewayError, InternalError, InvalidRequest, VersionNotSupported
from gateway.http.server_internals import HttpToolsProtocol

_log = logging.getLogger(__name__)


class UpgradeBodyReader:
    """Forwards a parser's events to a protocol, except the events of the first, synthetic head."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._skips_head = True
        self.on_body = protocol.on_body
        self.on_message_begin = self._after_head(protocol.on_message_begin)
        self.on_url = self._after_head(protocol.on_url)
        self.on_header = self._after_head(protocol.on_header)
        self.on_headers_complete = self._after_head(protocol.on_headers_complete)

    def on_message_complete(self) -> None:
        """Forward the event. The next events belong to another request."""
        self._skips_head = False
        self._protocol.on_message_complete()

    def _after_head(self, callback: Callable[..., None]) -> Callable[..., None]:
        return lambda *event: None if self._skips_head else callback(*event)


def parser_error(error: httptools.HttpParserError, method: bytes) -> GatewayError:
    """Return the gateway error that stands for a parser error."""
    if isinstance(error, httptools.HttpParserCallbackError):
        _log.error("unexpected failure", exc_info=error)
        return InternalError("The gateway failed; its log says why.")
    if method == b"PRI":
        return VersionNotSupported("HTTP/2 is not spoken here; use HTTP/1.1.")
    return InvalidRequest(f"This is no HTTP/1.1: {error}.")
