"""Serves an ASGI application on one socket, and drains requests in flight when stopped."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.draining import Draining, Stop
from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.http.side import GatewaySide
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.wire.http.connection import ServerState
from sluicegate.wire.http.messages import App
from sluicegate.wire.http.server import HttpServer
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.listening import (
    accept_for_siblings,
    open_socket,
    refuse_new_connections,
    wait_until_empty,
)

_SHORTEST_DRAIN: Final = 1.0
"""Seconds in which answers that are written may leave."""


async def serve(
    app: App,
    listener: socket.socket,
    *,
    drain: float,
    stop: asyncio.Event,
    side: GatewaySide | None = None,
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
    edge = edge or ListenerEdge()
    unsent = unsent or UnsentAnswers(clock=asyncio.get_running_loop().time)
    state = ServerState(app, side or GatewaySide(), timeouts, on_large_write=unsent.wrote)
    server = HttpServer(state, edge=None if edge.is_plain else edge, headers=edge.headers)
    unsent.watch(state.connections, edge.metrics.closed)
    draining = draining or Draining()
    draining.on_close(state.close_connections)
    sockets = (listener, *siblings)

    def on_check(now: float) -> None:
        edge.metrics.connections(len(state.connections))
        unsent.check(now)

    async with asyncio.TaskGroup() as tasks:
        await server.listen(listener)
        watchers = [
            tasks.create_task(server.watch(on_check)),
            tasks.create_task(edge.follow()),
            tasks.create_task(accept_for_siblings(siblings, server.acceptor.take, until=stop)),
        ]
        await stop.wait()
        await _drain(server, sockets, draining, stop)
        server.stop_accepting(*sockets)
        await server.end_idle_connections()
        await server.shut_down(max(_SHORTEST_DRAIN, drain))
        for watcher in watchers:
            watcher.cancel()


async def _drain(
    server: HttpServer,
    sockets: Sequence[socket.socket],
    draining: Draining,
    stop: asyncio.Event,
) -> None:
    """Wait until connections may end. The first of the sockets is this worker's own."""
    listener, *siblings = sockets
    if draining.is_announced:
        pass  # by the supervisor, which waited and drained the accept queues
    elif draining.is_supervised:
        draining.close_connections()
        if siblings:
            # They accept from this socket until the successor starts.
            server.stop_accepting(*sockets)
        await server.wait_until_unused(draining.delay)
    else:
        draining.announce()
        is_graceful = not isinstance(stop, Stop) or stop.is_graceful
        await asyncio.sleep(draining.delay if is_graceful else 0.0)
        # This process owns the socket: nobody else accepts those in its queue.
        refuse_new_connections(listener)
        await wait_until_empty([listener])


def open_listener(host: str, port: int, inherited: int | None, *, setting: str) -> socket.socket:
    """Return the `inherited` listening socket, or a new one on `host` and `port`.

    Raises:
        ConfigurationError: the address cannot be bound; `setting` is the variable to change.
    """
    if inherited is not None:
        return socket.socket(fileno=inherited)
    try:
        return open_socket(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on ({error.strerror}); choose another `{setting}`"
        ) from error
