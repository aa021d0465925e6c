"""Sends requests to backends with httpx, through the proxies that the environment names.

Each request has a connection of its own, also to the proxy: httpx takes what follows a response on
a kept connection for the response to the next request, and an answer must never be another's. So it
costs several times what `transport.BackendTransport` does, and is for proxies and debugging.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from sluicegate.gateway.tasks import TaskScope, log_failure
from sluicegate.gateway.upstream.base import (
    ConnectTimeout,
    Origin,
    TransportError,
    explain_early_loss,
)
from sluicegate.gateway.upstream.tls import ClientTls, explain

# Requests over `http://` need no authorities, and reading the system's takes 20 ms.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# Beside errors of its own, httpx lets through those of addresses and sockets.
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError)


class HttpxTransport:
    """`Transport` over httpx.

    The head of a response has up to 100 KiB, which is the bound of httpx's parser.
    """

    def __init__(
        self, *, tls: ClientTls | None = None, tcp_keepalive: TcpKeepalive = DEFAULT_KEEPALIVE
    ) -> None:
        self._tls = tls or ClientTls()
        self._tcp_keepalive = tcp_keepalive
        self._tasks = TaskScope()

    async def send(
        self, origin: Origin, head: bytes, body: bytes, *, connect_timeout: float | None = None
    ) -> "HttpxResponse":
        """See `Transport.send`."""
        try:
            context = self._tls.context if origin.scheme == "https" else _NO_TLS
        except ConfigurationError as error:
            raise TransportError(f"no TLS: {error.detail}") from error
        client = httpx.AsyncClient(verify=context)
        try:
            request = _request(origin, head, body)
            # Reading and writing are bounded by callers, who have deadlines of their own.
            timeout = httpx.Timeout(None, connect=connect_timeout).as_dict()
            request.extensions = {
                "timeout": timeout,
                "sni_hostname": origin.server_name,
                "trace": self._trace,
            }
            response = await client.send(request, stream=True)
        except BaseException as error:
            # Also when cancelled: the connection may be open.
            self._tasks.start(client.aclose())
            if isinstance(error, httpx.ConnectTimeout):
                raise ConnectTimeout("no connection in time") from error
            if isinstance(error, _FAILURES):
                raise TransportError(_reason(error, is_tls=origin.scheme == "https")) from error
            raise
        opened = HttpxResponse(response, client)
        opened.begin(self._tasks)
        try:
            await asyncio.sleep(0)  # a task that is cancelled before its first step closes nothing
        except asyncio.CancelledError:
            opened.close()
            raise
        return opened

    def send_nowait(self, origin: Origin, head: bytes, body: bytes) -> None:
        """See `Transport.send_nowait`: it keeps no connections."""

    async def aclose(self) -> None:
        """Close every connection."""
        await self._tasks.__aexit__(None, None, None)

    async def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._tcp_keepalive.apply(details["return_value"])


class HttpxResponse:
    """`Response` over httpx. The next piece is received once the one before was taken."""

    def __init__(self, response: httpx.Response, client: httpx.AsyncClient) -> None:
        self.status = response.status_code
        self.is_complete = False
        self.error: TransportError | None = None
        self.on_change: Callable[[], object] | None = None
        self._response = response
        self._client = client
        self._chunk = b""
        self._is_taken = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None

    def begin(self, tasks: TaskScope) -> None:
        """Receive the body in a task."""
        self._receiving = tasks.create_task(self._receive())

    def take(self) -> bytes:
        """See `Response.take`."""
        chunk, self._chunk = self._chunk, b""
        self._is_taken.set()
        return chunk

    def close(self) -> None:
        """See `Response.close`."""
        self.on_change = None
        if self._receiving is not None:
            self._receiving.cancel()

    async def _receive(self) -> None:
        """Receive the body, then close the connection."""
        try:
            async for chunk in self._response.aiter_raw():
                self._chunk = chunk
                self._is_taken.clear()
                self._note_change()
                await self._is_taken.wait()
            self.is_complete = True
        except _FAILURES as error:
            self.error = TransportError(f"the connection was lost: {type(error).__name__}")
        except Exception as bug:  # noqa: BLE001 - a caller waits for what comes
            log_failure(bug)
            self.error = TransportError(f"the answer cannot be read: {type(bug).__name__}")
        finally:
            with contextlib.suppress(*_FAILURES):
                await self._response.aclose()
            await self._client.aclose()
        self._note_change()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()


def _request(origin: Origin, head: bytes, body: bytes) -> httpx.Request:
    start, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    method, target, _ = start.split(b" ")
    url = httpx.URL(scheme=origin.scheme, host=origin.host, port=origin.port, raw_path=target)
    lines += [b"connection: close", b"content-length: %d" % len(body)]
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return httpx.Request(method.decode(), url, headers=headers, content=body)


def _reason(error: BaseException, *, is_tls: bool) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return explain(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return explain_early_loss(is_tls=is_tls)
    return f"no connection: {type(error).__name__}"
