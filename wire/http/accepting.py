"""Accepts connections that begin with a handshake: a header of the PROXY protocol, or TLS.

The event loop's own server begins TLS at the first byte, and neither bounds nor counts handshakes.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from sluicegate.wire.http.peers import Peer, too_many_connections
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.timeouts import ConnectionTimeouts

_log = logging.getLogger(__name__)
BACKLOG: Final = 2048
_ACCEPTED_AT_ONCE: Final = 64
_PAUSE: Final = 0.1
"""Seconds without accepting where no file descriptors are free."""
# Refused connections whose handshake is waited for, to tell them why; others are closed.
_MAX_REFUSED: Final = 16
# The event loop's time-out for the end of TLS also runs while an answer is sent, so it is a whole
# day. `Connection.check` ends connections that make no progress.
_SHUTDOWN_TIMEOUT: Final = 86_400.0
_SHORTEST: Final = 0.001
_LOG_INTERVAL: Final = 60.0
# OpenSSL's names of bytes that begin no handshake.
_PLAIN: Final = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"})


class NotEstablished(Exception):
    """Ends a connection before its first request. `cause` is one of a few fixed words."""

    cause: ClassVar[str]


class Edge:
    """The steps before HTTP begins on a connection: TLS, and finding out whose connection it is."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What new connections use; `None` where no TLS is spoken."""
        return None

    async def peer_of(self, connection: socket.socket, address: str) -> Peer:
        """Return who is connected from `address`. Its `refusal` says if it may not be.

        Raises:
            NotEstablished: the connection is not to be served.
            OSError: the connection broke.
        """
        return Peer()

    def refused(self, cause: str) -> None:
        """Count a connection that is refused, or not established."""


class Acceptor:
    """Accepts connections of one listener. Belongs to one event loop.

    A handshake counts as a connection. It must end within the time allowed for a request's head.
    """

    def __init__(
        self,
        edge: Edge,
        connect: Callable[[Peer], asyncio.Protocol],
        *,
        timeouts: ConnectionTimeouts,
        count_open: Callable[[], int],
    ) -> None:
        self._edge = edge
        self._connect = connect
        self._timeouts = timeouts
        self._count_open = count_open
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._handshakes: set[asyncio.Task[Any]] = set()
        self._refused = 0
        self._logged: dict[str, float] = {}

    def __len__(self) -> int:
        """The number of handshakes under way."""
        return len(self._handshakes)

    def start(self, listener: socket.socket) -> None:
        """Listen, and accept connections until `stop`."""
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listener = listener
        self._resume()

    def stop(self) -> None:
        """Accept no more; the listener can be closed."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener = None

    async def close(self) -> None:
        """Give up the handshakes under way."""
        handshakes = tuple(self._handshakes)
        for handshake in handshakes:
            handshake.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)

    def take(self, connection: socket.socket, address: str) -> None:
        """Begin the handshake of a connection that was accepted from `address`."""
        connection.setblocking(False)
        refusal = None
        if self._count_open() + len(self._handshakes) >= self._timeouts.connections:
            if self._refused >= _MAX_REFUSED:
                self._edge.refused("connections")
                connection.close()
                return
            self._refused += 1
            refusal = too_many_connections()
        task = self._loop.create_task(self._establish(connection, address, refusal))
        self._handshakes.add(task)
        task.add_done_callback(_log_fault)

    def _resume(self) -> None:
        self._resuming = None
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptors are free: the queue would wake us at once
                self._loop.remove_reader(listener)
                self._resuming = self._loop.call_later(_PAUSE, self._resume)
                return
            self.take(connection, str(address[0]))

    async def _establish(
        self, connection: socket.socket, address: str, refusal: Refusal | None
    ) -> None:
        deadline = self._loop.time() + self._timeouts.head
        task, peer = asyncio.current_task(), Peer()
        try:
            async with asyncio.timeout_at(deadline):
                peer = await self._edge.peer_of(connection, address)
            if refusal is not None:
                self._edge.refused("connections")
            elif peer.refusal is not None:
                self._edge.refused("address")
                if self._refused >= _MAX_REFUSED:
                    return
                self._refused += 1
                refusal = peer.refusal
            if refusal is not None:
                peer.close()
                peer.refusal = refusal
            await self._open(connection, peer, deadline)
        except (NotEstablished, OSError) as error:  # `SSLError` and `TimeoutError` are such
            self._failed(error)
        finally:
            if refusal is not None:
                self._refused -= 1
            if not peer.is_connected:
                connection.close()
                peer.close()
            # Not in a callback, so that a connection of this loop iteration can take its place.
            self._handshakes.discard(task)

    async def _open(self, connection: socket.socket, peer: Peer, deadline: float) -> None:
        """Hand the connection to a protocol, over TLS where that is served."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context, left = self._edge.context, deadline - self._loop.time()
        await self._loop.connect_accepted_socket(
            partial(self._connect, peer),
            connection,
            ssl=context,
            ssl_handshake_timeout=None if context is None else max(_SHORTEST, left),
            ssl_shutdown_timeout=None if context is None else _SHUTDOWN_TIMEOUT,
        )

    def _failed(self, error: NotEstablished | OSError) -> None:
        """Count a handshake that failed, and log each cause once a minute."""
        if isinstance(error, NotEstablished):
            cause, text = error.cause, str(error)
        else:
            cause, text = "broken" if self._edge.context is None else "tls", _explain(error)
        self._edge.refused(cause)
        now = time.monotonic()
        if now - self._logged.get(text, -_LOG_INTERVAL) >= _LOG_INTERVAL:
            self._logged[text] = now
            _log.warning("a connection was not established", extra={"reason": text})


def _log_fault(handshake: asyncio.Task[None]) -> None:
    if not handshake.cancelled() and (error := handshake.exception()) is not None:
        _log.error("a connection was lost by a fault", exc_info=error)


def _explain(error: OSError) -> str:
    """Return in words why a handshake failed; the words are of a closed set."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return "the connection broke, or took too long"
    if error.reason in _PLAIN:
        return "plain HTTP came where TLS is spoken: the URL must begin with `https://`"
    if error.reason in _NO_TLS:
        return "what came is no TLS"
    return f"the handshake failed: {(error.reason or 'unknown reason').lower().replace('_', ' ')}"
