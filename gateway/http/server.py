"""Serves an ASGI application on one socket until told to stop, then lets requests in flight end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn
from litestar.types import ASGIApp
from typing_extensions import override

from gateway.errors import ConfigurationError
from gateway.http.connection_timeouts import ConnectionTimeouts, TimedProtocol, end_late_connections
from gateway.http.draining import Draining, Stop
from gateway.http.write_coalescing import WriteCoalescingProtocol
from gateway.sockets.listening import refuse_new, take_over, until_empty

_BACKLOG = 2048
_LOOK = 0.05
# What a connection that was accepted last, and has sent nothing yet, is given to send a request.
_FIRST_REQUEST = 1.0


class _Server(uvicorn.Server):
    """A server whose signals are its owner's business, and which accepts nothing unanswered."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, siblings: Sequence[socket.socket]
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._siblings = siblings

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        yield

    def make_protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection that was accepted elsewhere."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @property
    def has_siblings(self) -> bool:
        """Whether other workers accept what waits at this one's socket."""
        return bool(self._siblings)

    async def empty_queue(self) -> None:
        """Accept what has come so far, and let nothing more come; for whoever owns the socket."""
        if self.started:
            refuse_new(self._listener)
            await until_empty([self._listener])

    def stop_accepting(self) -> None:
        """Accept nothing any more; connections that wait are others' to accept."""
        for server in self.servers:
            server.close()
        for listener in (self._listener, *self._siblings):
            listener.close()

    async def until_unused(self, within: float) -> None:
        """Wait until there is no connection, no longer than `within`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within
        # uvicorn tells nobody of the end of a connection.
        while self.server_state.connections and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop_accepting()
        await self._end_idle_connections()
        await super().shutdown([])

    async def _end_idle_connections(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + _FIRST_REQUEST
        while self.server_state.connections:
            for connection in list(self.server_state.connections):
                if isinstance(connection, TimedProtocol):
                    connection.end_if_idle(is_last_call=clock() >= deadline)
            if clock() >= deadline:
                return
            await asyncio.sleep(_LOOK)


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    drain: float,
    stop: asyncio.Event,
    protocol: Callable[..., asyncio.Protocol] = WriteCoalescingProtocol,
    patience: ConnectionTimeouts | None = None,
    draining: Draining | None = None,
    siblings: Sequence[socket.socket] = (),
) -> None:
    """Serve `app` on `listener`; after `stop` is set, leave as `draining` says.

    Open requests are then waited for, up to `drain`. Connections are bounded by `patience`, in
    number and in how long they wait for a request. What waits at `siblings`, the sockets of other
    workers, is accepted too where those do not do it.

    The listener is bound and starts to listen here: until then nobody can connect.
    """
    patience = patience or ConnectionTimeouts()
    draining = draining or Draining()
    config = uvicorn.Config(
        app,
        loop="none",
        http=partial(  # type: ignore[arg-type]  # it makes one
            protocol, patience=patience, turned_away=set(), draining=draining
        ),
        timeout_keep_alive=max(1, round(patience.idle)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(drain)),
        proxy_headers=False,
    )
    server = _Server(config, listener, siblings)
    async with asyncio.TaskGroup() as tasks:
        leaving = asyncio.Event()
        watchers = [
            tasks.create_task(_help(server, siblings, leaving)),
            tasks.create_task(_leave(server, stop, draining, leaving)),
            tasks.create_task(end_late_connections(server.server_state.connections)),
        ]
        await server.serve(sockets=[listener])
        for watcher in watchers:
            watcher.cancel()


async def _help(server: _Server, siblings: Sequence[socket.socket], leaving: asyncio.Event) -> None:
    while not server.started:  # noqa: ASYNC110 - nor of its start
        await asyncio.sleep(_LOOK)
    if not leaving.is_set():
        await take_over(siblings, server.make_protocol, until=leaving)


async def _leave(
    server: _Server, stop: asyncio.Event, draining: Draining, leaving: asyncio.Event
) -> None:
    """Wait for `stop`, and then do what has to be done before the server may end."""
    await stop.wait()
    leaving.set()
    if draining.is_announced:
        pass  # by the supervisor, which has waited, and seen to it that nobody waits to be accepted
    elif draining.is_supervised:
        draining.close_connections()
        if server.has_siblings and server.started:
            server.stop_accepting()  # they accept from this socket until the successor is there
        await server.until_unused(draining.delay)
    else:
        draining.announce()
        is_patient = not isinstance(stop, Stop) or stop.is_patient
        await asyncio.sleep(draining.delay if is_patient else 0.0)
        await server.empty_queue()
    server.should_exit = True


def listener_on(host: str, port: int, inherited: int | None, *, setting: str) -> socket.socket:
    """Return the `inherited` listening socket, or a new one on `host` and `port`.

    Raises:
        ConfigurationError: the address cannot be had; `setting` is the variable to change.
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
