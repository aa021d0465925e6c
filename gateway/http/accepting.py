"""Accepts connections that begin with a handshake: a header of the PROXY protocol, or TLS.

The event loop's own server begins TLS at the first byte, and neither bounds nor counts handshakes.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gateway.http.edge import ListenerEdge
from gateway.http.listener_tls import explain_failure
from gateway.http.peers import too_many_of
from gateway.sockets.proxy_protocol import InvalidProxyHeader
from gateway.tasks import log_failure
from wire.http.peers import Peer, too_many_connections
from wire.http.refusals import Refusal
from wire.http.timeouts import ConnectionTimeouts

_log = logging.getLogger(__name__)
_ACCEPTED_AT_ONCE: Final = 64
_PAUSE: Final = 0.1
"""Seconds without accepting where no file descriptors are free."""
# Refused connections whose handshake is waited for, to tell them why; others are closed.
_MAX_REFUSED: Final = 16
# The event loop's time for the end of TLS runs while an answer is sent, too, however long that
# takes: the server's watch ends connections that make no progress.
_SHUTDOWN_TIMEOUT: Final = 86_400.0
_SHORTEST: Final = 0.001
_LOG_INTERVAL: Final = 60.0


class Acceptor:
    """Accepts connections of one listener. Belongs to one event loop.

    A handshake counts as a connection, and has the time of a request's head.
    """

    def __init__(
        self,
        edge: ListenerEdge,
        make_protocol: Callable[[Peer], asyncio.Protocol],
        *,
        timeouts: ConnectionTimeouts,
        count_open: Callable[[], int],
    ) -> None:
        self._edge = edge
        self._make_protocol = make_protocol
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

    def start(self, listener: socket.socket, backlog: int) -> None:
        """Listen, and accept connections until `stop`."""
        listener.setblocking(False)
        listener.listen(backlog)
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
        refusal = self._refusal()
        if refusal is not None and self._refused >= _MAX_REFUSED:
            self._edge.metrics.refused("connections")
            connection.close()
            return
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

    def _refusal(self) -> Refusal | None:
        if self._count_open() + len(self._handshakes) < self._timeouts.connections:
            return None
        return too_many_connections()

    async def _establish(
        self, connection: socket.socket, address: str, refusal: Refusal | None
    ) -> None:
        deadline = self._loop.time() + self._timeouts.head
        task, peer = asyncio.current_task(), Peer()
        try:
            async with asyncio.timeout_at(deadline):
                peer, is_within = await self._edge.peer_of(connection, address)
            if refusal is not None or not is_within:
                await self._refuse(connection, peer, refusal, deadline)
            else:
                await self._open(connection, peer, deadline)
        except InvalidProxyHeader as error:
            self._failed("proxy_header", str(error))
        except OSError as error:  # `SSLError` and `TimeoutError` are such
            self._failed("broken" if self._edge.tls is None else "tls", explain_failure(error))
        finally:
            if not peer.is_connected:
                connection.close()
                peer.close()
            # Not in a callback: its place is free for who comes in this iteration of the loop.
            self._handshakes.discard(task)

    async def _refuse(
        self,
        connection: socket.socket,
        peer: Peer,
        refusal: Refusal | None,
        deadline: float,
    ) -> None:
        """Tell a client why its connection is refused, unless many are told."""
        self._edge.metrics.refused("address" if refusal is None else "connections")
        peer.close()
        peer.refusal = refusal or too_many_of(self._edge.counts.most)
        if self._refused >= _MAX_REFUSED:
            return
        self._refused += 1
        try:
            await self._open(connection, peer, deadline)
        finally:
            self._refused -= 1

    async def _open(self, connection: socket.socket, peer: Peer, deadline: float) -> None:
        """Hand the connection to a protocol, over TLS where that is served."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls, left = self._edge.tls, deadline - self._loop.time()
        await self._loop.connect_accepted_socket(
            partial(self._make_protocol, peer),
            connection,
            ssl=None if tls is None else tls.context,
            ssl_handshake_timeout=None if tls is None else max(_SHORTEST, left),
            ssl_shutdown_timeout=None if tls is None else _SHUTDOWN_TIMEOUT,
        )

    def _failed(self, reason: str, text: str) -> None:
        """Count a handshake that failed, and log each cause once a minute."""
        self._edge.metrics.refused(reason)
        now = time.monotonic()
        if now - self._logged.get(text, -_LOG_INTERVAL) >= _LOG_INTERVAL:
            self._logged[text] = now
            _log.warning("a connection was not established", extra={"reason": text})


def _log_fault(handshake: asyncio.Task[None]) -> None:
    if not handshake.cancelled() and (error := handshake.exception()) is not None:
        log_failure(error)
