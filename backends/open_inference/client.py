"""Calls a server with the Open Inference Protocol, from threads and with persistent connections.

This client does not use httpx, for two reasons. The read timeout of httpx starts again with each
chunk, so a slow response can exceed the deadline of the call. On a reused connection, httpx
mistakes unsolicited bytes after a response for the response to the next call.
"""

import contextlib
import hashlib
import http.client
import io
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from typing_extensions import Buffer, override

from sluicegate.backends.errors import UpstreamUnavailable
from sluicegate.backends.open_inference.address import (
    ModelConfig,
    ModelMetadata,
    RemoteModelServer,
    ServerMetadata,
)
from sluicegate.wire.protocol import UNREADABLE

# Timeouts in seconds for readiness and metadata, which a healthy server answers immediately.
_READY_TIMEOUT, _STATUS_TIMEOUT = 1.0, 2.0
_MOST_BYTES = 512 * 1024 * 1024
_CHUNK = 1024 * 1024
_MOST_DIGITS = 10
_OK, _NOT_FOUND = 200, 404
# Errors when a reused connection was closed by the server before it sent any response.
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
# TCP keepalive: idle connections are probed after 5 s and closed after 10 s without an answer, so
# that no call is sent on a connection that the network has dropped.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
_T = TypeVar("_T", ModelMetadata, ModelConfig, ServerMetadata)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a response of the server.

    `json_bytes` is the length of the JSON head, if binary tensors follow it. `retry_after` is the
    value of the header `Retry-After` in seconds.
    """

    status: int
    body: bytes
    json_bytes: int | None = None
    retry_after: int | None = None


class UpstreamClient:
    """Calls one server. Safe in any thread."""

    def __init__(self, upstream: RemoteModelServer, *, token: str = "") -> None:
        self._upstream = upstream
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        parts = urlsplit(upstream.url)
        self._prefix = parts.path.rstrip("/")
        self._netloc = parts.netloc
        self._connection_class = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def metadata(self) -> ModelMetadata:
        """Return the metadata of the model.

        Raises:
            UpstreamUnavailable: there is no response, or it does not follow the protocol.
        """
        return self._read(self._upstream.path, ModelMetadata)

    def config(self) -> ModelConfig:
        """Return the batch configuration, if the server has the extension `model_configuration`.

        Raises:
            UpstreamUnavailable: there is no response, or it does not follow the protocol.
        """
        return self._read(f"{self._upstream.path}/config", ModelConfig)

    def server(self) -> ServerMetadata:
        """Return the metadata of the server.

        Raises:
            UpstreamUnavailable: there is no response, or it does not follow the protocol.
        """
        return self._read("/v2", ServerMetadata)

    def is_ready(self) -> bool:
        """Return whether both the server and the model report that they are ready.

        Both are asked, because a server that is shutting down may still report its models as ready.
        """
        try:
            server = self._call("GET", "/v2/health/ready", timeout=_READY_TIMEOUT)
            model = self._call("GET", f"{self._upstream.path}/ready", timeout=_READY_TIMEOUT)
        except UpstreamUnavailable:
            return False
        # Accept "not found" for the server itself, because a proxy may expose only the models'
        # routes.
        return server.status in (_OK, _NOT_FOUND) and model.status == _OK

    def infer(self, body: bytes, headers: Mapping[str, str], *, timeout: float) -> Reply:
        """Run the model.

        Raises:
            UpstreamUnavailable: no complete response arrived within `timeout` seconds.
        """
        return self._call("POST", f"{self._upstream.path}/infer", body, headers, timeout=timeout)

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _read(self, path: str, kind: type[_T]) -> _T:
        reply = self._call("GET", path, timeout=_STATUS_TIMEOUT)
        if reply.status != _OK:
            raise UpstreamUnavailable(f"{self._upstream.title} answers {path} with {reply.status}")
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except UNREADABLE as error:
            raise UpstreamUnavailable(
                f"{self._upstream.title} answers {path} with a response that does not follow the "
                f"Open Inference Protocol: {error}"
            ) from None

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float,
    ) -> Reply:
        until = time.monotonic() + timeout
        request = (method, self._prefix + path, body, {**self._headers, **(headers or {})})
        try:
            idle = self._take_idle()
            if idle is not None:
                # Inference has no side effects, so the request can be sent again.
                with contextlib.suppress(*_STALE):
                    return self._exchange(idle, request, until)
            new = self._connection_class(self._netloc, timeout=_time_left(until))
            return self._exchange(new, request, until)
        except (OSError, http.client.HTTPException) as error:
            raise UpstreamUnavailable(
                f"{self._upstream.title} does not answer: `{type(error).__name__}`"
            ) from error

    def _take_idle(self) -> http.client.HTTPConnection | None:
        """Return an open idle connection or `None`; close connections with unsolicited bytes."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _is_readable(connection.sock):
                return connection
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        request: tuple[str, str, bytes | None, dict[str, str]],
        until: float,
    ) -> Reply:
        try:
            if connection.sock is None:
                connection.connect()
                _enable_keepalive(connection)
            connection.sock.settimeout(_time_left(until))
            # http.client only calls `response_class`, so it may be a function instead of a class.
            connection.response_class = partial(  # type: ignore[assignment]
                _DeadlineResponse, left=lambda: _time_left(until)
            )
            connection.request(*request)
            response = connection.getresponse()
            body = self._body(response)
            reply = Reply(
                status=response.status,
                body=body,
                json_bytes=_number(response.getheader("Inference-Header-Content-Length")),
                retry_after=_number(response.getheader("Retry-After")),
            )
        except BaseException:
            # The exchange is incomplete, so the connection cannot be reused.
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < self._upstream.runs:
                self._idle.append(connection)
                return reply
        connection.close()
        return reply

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > _MOST_BYTES:
                raise http.client.HTTPException("the response is too large")
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        # `read1` leaves a response of known length open, and an open response blocks its
        # connection.
        response.close()
        return bytes(body)


def _time_left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _DeadlineResponse(http.client.HTTPResponse):
    """Represents an HTTP response whose reads fail after the deadline of the call."""

    def __init__(
        self, sock: socket.socket, *args: Any, left: Callable[[], float], **options: Any
    ) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_DeadlineReader(sock, self.fp.detach(), left))


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket. The timeout of each read is the time that the call has left."""

    def __init__(self, wire: socket.socket, raw: io.RawIOBase, left: Callable[[], float]) -> None:
        self._wire = wire
        self._raw = raw
        self._left = left

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Buffer, /) -> int | None:
        self._wire.settimeout(self._left())
        return self._raw.readinto(buffer)

    @override
    def close(self) -> None:
        self._raw.close()
        super().close()


def _is_readable(wire: socket.socket) -> bool:
    """Return whether an idle connection has unread bytes or was closed."""
    poll = select.poll()
    poll.register(wire, select.POLLIN)
    return bool(poll.poll(0))


def _enable_keepalive(connection: http.client.HTTPConnection) -> None:
    wire: socket.socket = connection.sock
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            wire.setsockopt(socket.IPPROTO_TCP, option, value)


def _number(text: str | None) -> int | None:
    is_number = text and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if text and is_number else None


def fingerprint(upstream: RemoteModelServer, token: str = "") -> str:
    """Return a digest of a model's metadata, or "" if the server or model is not ready.

    The digest covers the inputs and the outputs. If `upstream` names no version, the digest also
    covers the versions. It does not change if weights are replaced under the same version.
    """
    client = UpstreamClient(upstream, token=token)
    try:
        if not client.is_ready():
            return ""
        metadata = client.metadata()
        if upstream.version is not None:
            metadata = msgspec.structs.replace(metadata, versions=None)
        content = msgspec.json.encode(metadata, order="deterministic")
    except UpstreamUnavailable:
        return ""
    finally:
        client.close()
    return hashlib.blake2b(content).hexdigest()
