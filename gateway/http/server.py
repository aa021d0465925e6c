"""Serves an ASGI application on one socket, and drains requests in flight when stopped."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn
from litestar.types import ASGIApp
from typing_extensions import override

from gateway.errors import ConfigurationError
from gateway.http.accepting import Acceptor
from gateway.http.connection_timeouts import ConnectionTimeouts, TimedProtocol, enforce_timeouts
from gateway.http.draining import Draining, Stop
from gateway.http.edge import ListenerEdge
from gateway.http.peers import Peer
from gateway.http.unsent_answers import UnsentAnswers
from gateway.http.write_coalescing import WriteCoalescingProtocol
from gateway.sockets.listening import accept_for_siblings, refuse_new_connections, wait_until_empty

_BACKLOG = 2048
_POLL_INTERVAL = 0.05
# Seconds that a newly accepted connection gets to send its first request at shutdown.
_FIRST_REQUEST_TIMEOUT = 1.0


class _Server(uvicorn.Server):
    """Extends uvicorn's server: handles no signals, and answers every accepted connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        siblings: Sequence[socket.socket],
        edge: ListenerEdge,
        timeouts: ConnectionTimeouts,
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self.siblings = siblings
        self.acceptor: Acceptor | None = None
        """What accepts connections where the event loop's own server would not do."""
        if not edge.is_plain:
            self.acceptor = Acceptor(
                edge,
                self.make_protocol,
                timeouts=timeouts,
                count_open=lambda: len(self.server_state.connections),
            )

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets if self.acceptor is None else [])
        if self.acceptor is not None:
            self.acceptor.start(self._listener, _BACKLOG)

    def make_protocol(self, peer: Peer | None = None) -> asyncio.Protocol:
        """Return a protocol for a connection that uvicorn did not accept."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            peer=peer,
        )

    async def drain_accept_queue(self) -> None:
        """Refuse new connections, and accept those in the queue; for the owner of the socket."""
        if self.started:
            refuse_new_connections(self._listener)
            await wait_until_empty([self._listener])

    def stop_accepting(self) -> None:
        """Stop accepting; other workers accept the connections in the queue."""
        for server in self.servers:
            server.close()
        if self.acceptor is not None:
            self.acceptor.stop()
        for listener in (self._listener, *self.siblings):
            listener.close()

    async def wait_until_no_connections(self, within: float) -> None:
        """Wait until no connection is open, at most `within` seconds."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within
        # uvicorn has no callback for the end of a connection.
        while self.server_state.connections and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop_accepting()
        await self._end_idle_connections()
        await super().shutdown([])

    async def _end_idle_connections(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + _FIRST_REQUEST_TIMEOUT
        while self.server_state.connections or self.acceptor:
            for connection in list(self.server_state.connections):
                if isinstance(connection, TimedProtocol):
                    connection.close_if_idle(is_last_call=clock() >= deadline)
            if clock() >= deadline:
                break
            await asyncio.sleep(_POLL_INTERVAL)
        if self.acceptor is not None:
            await self.acceptor.close()


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    drain: float,
    stop: asyncio.Event,
    protocol: Callable[..., asyncio.Protocol] = WriteCoalescingProtocol,
    timeouts: ConnectionTimeouts | None = None,
    draining: Draining | None = None,
    siblings: Sequence[socket.socket] = (),
    edge: ListenerEdge | None = None,
    unsent: UnsentAnswers | None = None,
) -> None:
    """Serve `app` on `listener` until `stop` is set, then drain as `draining` says.

    Requests in flight get up to `drain` seconds. `timeouts` bounds the connections. Connections in
    the accept queues of `siblings`, the sockets of other workers, are accepted too where those
    workers do not accept them in time. `edge` handles what comes before HTTP. `unsent` bounds
    answers.

    The listener is bound by the caller and starts to listen here.
    """
    timeouts = timeouts or ConnectionTimeouts()
    draining = draining or Draining()
    edge = edge or ListenerEdge()
    unsent = unsent or UnsentAnswers(clock=asyncio.get_running_loop().time)
    rejected: set[object] = set()
    config = uvicorn.Config(
        app,
        loop="none",
        http=partial(  # type: ignore[arg-type]  # it makes one
            protocol, timeouts=timeouts, rejected=rejected, draining=draining, unsent=unsent
        ),
        timeout_keep_alive=max(1, round(timeouts.idle)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(drain)),
        proxy_headers=False,
        headers=list(edge.headers),
    )
    server = _Server(config, listener, siblings, edge, timeouts)
    unsent.watch(server.server_state.connections, edge.metrics.closed)
    async with asyncio.TaskGroup() as tasks:
        stopping = asyncio.Event()
        watchers = [
            tasks.create_task(_accept_for_siblings(server, siblings, stopping)),
            tasks.create_task(_shut_down_on(server, stop, draining, stopping)),
            tasks.create_task(
                enforce_timeouts(
                    server.server_state.connections,
                    rejected,
                    on_check=edge.metrics.connections,
                    unsent=unsent,
                )
            ),
            tasks.create_task(edge.follow()),
        ]
        await server.serve(sockets=[listener])
        for watcher in watchers:
            watcher.cancel()


async def _accept_for_siblings(
    server: _Server, siblings: Sequence[socket.socket], stopping: asyncio.Event
) -> None:
    while not server.started:  # noqa: ASYNC110 - nor for its start
        await asyncio.sleep(_POLL_INTERVAL)
    if not stopping.is_set():
        take = None if server.acceptor is None else server.acceptor.take
        await accept_for_siblings(siblings, server.make_protocol, until=stopping, take=take)


async def _shut_down_on(
    server: _Server, stop: asyncio.Event, draining: Draining, stopping: asyncio.Event
) -> None:
    """Wait for `stop`, drain, and then let the server exit."""
    await stop.wait()
    stopping.set()
    if draining.is_announced:
        pass  # by the supervisor, which waited and drained the accept queues
    elif draining.is_supervised:
        draining.close_connections()
        if server.siblings and server.started:
            server.stop_accepting()  # they accept from this socket until the successor starts
        await server.wait_until_no_connections(draining.delay)
    else:
        draining.announce()
        is_graceful = not isinstance(stop, Stop) or stop.is_graceful
        await asyncio.sleep(draining.delay if is_graceful else 0.0)
        await server.drain_accept_queue()
    server.should_exit = True


def open_listener(host: str, port: int, inherited: int | None, *, setting: str) -> socket.socket:
    """Return the `inherited` listening socket, or a new one on `host` and `port`.

    Raises:
        ConfigurationError: the address cannot be bound; `setting` is the variable to change.
    """
    if inherited is not None:
        return socket.socket(fileno=inherited)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on ({error.strerror}); choose another `{setting}`"
        ) from error
    return listener
