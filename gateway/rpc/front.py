"""Accepts connections of gRPC, bounds them, and passes their bytes to grpcio on a private socket.

The front bounds the time and the frames of a connection before grpcio sees them; answers of grpcio
pass unchanged. The number of connections, in all and of an address, is bounded as over HTTP.
"""

import asyncio
import contextlib
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.gateway.rpc.frames import BadFrames, ClientFrames, ServerFrames, goaway
from sluicegate.wire.http.accepting import Acceptor
from sluicegate.wire.http.peers import Peer
from sluicegate.wire.http.slow_readers import ReadingPeer, ReadProgress
from sluicegate.wire.http.timeouts import ConnectionTimeouts, confirmed_by_peer
from sluicegate.wire.listening import refuse_new_connections, wait_until_empty

_CHECK_INTERVAL: Final = 1.0
_POLL_INTERVAL: Final = 0.02
_LINGER: Final = 1.0
"""Seconds from the last frame to the close; a reset at once would overtake the frame."""
_MAX_DISCARDED_BYTES: Final = 1024 * 1024
_LATE: Final = BadFrames(BadFrames.CALM, "The head of a call did not arrive in time.")


@contextlib.contextmanager
def private_address() -> Iterator[tuple[str, str]]:
    """Yield the address of a socket for this process, as grpcio and as asyncio write it."""
    if sys.platform != "linux":
        with tempfile.TemporaryDirectory(prefix="sluicegate-") as folder:  # mode 0700
            path = str(Path(folder) / "rpc")
            yield f"unix:{path}", path
        return
    # An abstract name is no file, so nothing is left when the process is killed.
    name = f"sluicegate-{secrets.token_hex(16)}"
    yield f"unix-abstract:{name}", f"\0{name}"


class CallFront:
    """Listens at an address, and connects each client to grpcio at `server`.

    Belongs to one event loop. Connections that come while it stops are still accepted. Whoever
    checks `unsent` closes those whose clients read too slowly.
    """

    def __init__(
        self,
        server: str,
        *,
        edge: ListenerEdge,
        timeouts: ConnectionTimeouts,
        unsent: UnsentAnswers,
    ) -> None:
        self.server = server
        self.timeouts = timeouts
        self.connections: set[_Client] = set()
        self.connecting: set[asyncio.Task[Any]] = set()
        self._acceptor = Acceptor(
            edge,
            lambda peer: _Client(self, peer),
            timeouts=timeouts,
            count_open=lambda: len(self.connections),
        )
        self.edge = edge
        self.unsent = unsent
        unsent.watch(self.connections, edge.metrics.closed)

    @contextlib.asynccontextmanager
    async def listening(self, listener: socket.socket) -> AsyncIterator[None]:
        """Accept connections of `listener` while this is entered, or until `stop_accepting`."""
        self._acceptor.start(listener)
        watchers = [
            asyncio.create_task(self._enforce_timeouts()),
            asyncio.create_task(self.edge.follow()),
        ]
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()
            self._acceptor.stop()
            listener.close()
            await self._acceptor.close()
            await self._close_connections()

    async def stop_accepting(self, listener: socket.socket) -> None:
        """Accept clients that have connected already, and refuse new ones."""
        refuse_new_connections(listener)
        await wait_until_empty([listener])
        self._acceptor.stop()
        listener.close()

    async def _close_connections(self) -> None:
        """Let connections that grpcio has ended send the rest, then abort the others."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _LINGER
        # There is no event for the end of all connections.
        while self.connections and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)
        for connection in list(self.connections):
            connection.give_up()

    async def _enforce_timeouts(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = clock()
            for connection in list(self.connections):
                connection.check(now)


class _Client(asyncio.Protocol):
    """A client's connection. It connects to grpcio once the client has sent HTTP/2's preface."""

    def __init__(self, front: CallFront, peer: Peer) -> None:
        self._front = front
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._server: _Server | None = None
        self._is_refused = False
        self._is_paused = False
        self._is_throttled = False
        self._discarded_bytes = 0
        self._progress: ReadProgress | None = None
        self._open_at = self._loop.time()
        self._frames = ClientFrames(now=self._loop.time())

    @override
    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        self._peer.is_connected = True
        if self._peer.refusal is None:
            self._front.connections.add(self)
            return
        self._is_refused = True
        # Before any settings: a client then waits longer before each attempt to connect.
        transport.write(goaway(BadFrames(BadFrames.CALM, self._peer.refusal.detail)))
        transport.close()
        self._loop.call_later(_LINGER, self.give_up)

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._discard(len(data))
            return
        now = self._loop.time()
        try:
            passed = self._frames.receive(data, now)
        except BadFrames as error:
            self._refuse(error)
            return
        if passed:
            if self._server is None:
                self._server = _Server(self)
                self._connect(self._server)
            self._server.send(passed)
        if pause := self._frames.pause:
            self._is_throttled = True
            self._loop.call_later(pause, self._go_on)
        self._update_reading()

    @override
    def eof_received(self) -> bool:
        """Pass it on: grpcio ends the connection, which clients of gRPC do not half-close."""
        if self._server is None or self._is_refused:
            return False
        self._server.send_eof()
        return self.transport.get_extra_info("sslcontext") is None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._front.connections.discard(self)
        self._peer.close()
        self._is_refused = True
        if self._server is not None:
            self._server.close()

    @override
    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause(paused=True)

    @override
    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.pause(paused=False)

    def pause(self, *, paused: bool) -> None:
        """Stop reading while grpcio does not read."""
        self._is_paused = paused
        self._update_reading()

    def check(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        timeouts, is_waited_for = self._front.timeouts, not (self._is_refused or self._is_paused)
        since = self._frames.waiting_since if is_waited_for else None
        if since is not None and now - since > timeouts.head:
            self._refuse(_LATE)
        if not self.transport.is_closing() or self.own_unsent_bytes():
            self._open_at = now
        elif now - self._open_at > timeouts.confirm:  # over TLS the client has to
            self.give_up()

    def reader(self, now: float) -> ReadingPeer | None:
        """Return what the client has not read, `None` where no bytes for it wait here."""
        unsent = self.own_unsent_bytes()
        if not unsent:
            self._progress = None
            return None
        total = confirmed_by_peer(self.transport)
        self._progress = self._progress or ReadProgress(now, total)
        return self._progress.observe(now, total, unsent)

    def own_unsent_bytes(self) -> int:
        """Return the unsent bytes that no budget counts."""
        return self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def finish(self) -> None:
        """Send the rest and close, since grpcio has ended the connection."""
        if not self._is_refused:
            self.transport.close()

    def _refuse(self, error: BadFrames) -> None:
        """Send the reason, if the client can read it, and close the connection."""
        self._is_refused = True
        self._front.edge.metrics.refused("frames")
        if self._server is None or self._server.frames.is_between:
            self.transport.write(goaway(error))
        if self._server is not None:
            self._server.close()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._update_reading()
        self._loop.call_later(_LINGER, self.give_up)

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > _MAX_DISCARDED_BYTES:
            self.give_up()

    def _connect(self, server: "_Server") -> None:
        async def connect() -> None:
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            own.setblocking(False)
            try:
                await self._loop.sock_connect(own, self._front.server)
                await self._loop.create_unix_connection(lambda: server, sock=own)
            except OSError:  # grpcio is stopping
                own.close()
                self.give_up()

        task = self._loop.create_task(connect())
        self._front.connecting.add(task)
        task.add_done_callback(self._front.connecting.discard)

    def _go_on(self) -> None:
        self._is_throttled = False
        if not self.transport.is_closing():
            self.data_received(b"")

    def _update_reading(self) -> None:
        """Read unless a side is paused. Bytes of a refused client are thrown away."""
        if self.transport.is_closing():
            return
        if (self._is_paused or self._is_throttled) and not self._is_refused:
            self.transport.pause_reading()
        elif not self.transport.is_reading():
            self.transport.resume_reading()


class _Server(asyncio.Protocol):
    """The connection to grpcio that belongs to a client's."""

    def __init__(self, client: _Client) -> None:
        self.frames = ServerFrames()
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()
        self._is_closed = False
        self._is_at_eof = False
        client.pause(paused=True)

    @override
    def connection_made(self, transport: Any) -> None:
        if self._is_closed:
            transport.abort()
            return
        self._transport = transport
        transport.write(self._waiting)
        self._waiting = bytearray()
        if self._is_at_eof:
            transport.write_eof()
        self._client.pause(paused=False)

    @override
    def data_received(self, data: bytes) -> None:
        self.frames.follow(data)
        self._client.transport.write(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._client.finish()

    @override
    def pause_writing(self) -> None:
        self._client.pause(paused=True)

    @override
    def resume_writing(self) -> None:
        self._client.pause(paused=False)

    def send(self, data: bytes | bytearray) -> None:
        """Send, now or once there is a connection."""
        if self._transport is None:
            self._waiting += data
        else:
            self._transport.write(data)

    def send_eof(self) -> None:
        """Send the end of what the client sends."""
        self._is_at_eof = True
        if self._transport is not None:
            self._transport.write_eof()

    def pause(self, *, paused: bool) -> None:
        """Stop reading while the client does not read."""
        if self._transport is None or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
