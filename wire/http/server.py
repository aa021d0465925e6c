"""Serves an application on a listening socket, and ends without losing a request."""

import asyncio
import logging
import socket
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Final

from sluicegate.wire.http.accepting import BACKLOG, Acceptor, Edge
from sluicegate.wire.http.connection import Connection, ServerState
from sluicegate.wire.http.messages import Headers, header_lines

_log = logging.getLogger(__name__)
_CHECK_INTERVAL: Final = 1.0
_POLL_INTERVAL: Final = 0.05
# Seconds that a newly accepted connection gets to send its first request at the end.
_FIRST_REQUEST: Final = 1.0


class HttpServer:
    """Has the connections of a listener. Belongs to one event loop.

    Without an `edge`, HTTP begins with the first byte of a connection. `headers` come first in
    every answer, behind the date if the server `has_date`.
    """

    def __init__(
        self,
        state: ServerState,
        *,
        edge: Edge | None = None,
        headers: Headers = (),
        has_date: bool = True,
    ) -> None:
        self.state = state
        self.acceptor = Acceptor(
            edge or Edge(),
            partial(Connection, state),
            timeouts=state.timeouts,
            count_open=lambda: len(state.connections),
        )
        self._is_plain = edge is None
        self._headers = header_lines(headers)
        self._has_date = has_date
        self._server: asyncio.Server | None = None
        self._renew_lines()

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections of a bound socket until `stop_accepting`."""
        if not self._is_plain:
            self.acceptor.start(listener)
            return
        # The event loop's own server takes half as long for a connection.
        connect, loop = partial(Connection, self.state), asyncio.get_running_loop()
        self._server = await loop.create_server(connect, sock=listener, backlog=BACKLOG)

    def stop_accepting(self, *listeners: socket.socket) -> None:
        """Accept nothing any more, and close the sockets; those who came stay connected."""
        if self._server is not None:
            self._server.close()
        self.acceptor.stop()
        for listener in listeners:
            listener.close()

    async def watch(self, on_check: Callable[[float], None] = lambda _: None) -> None:
        """Renew the date and end late connections once a second, until cancelled.

        `on_check` gets the time.
        """
        clock, state = asyncio.get_running_loop().time, self.state
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            self._renew_lines()
            now = clock()
            for connection in [*state.connections, *state.rejected]:
                connection.check(now)
            on_check(now)

    async def wait_until_unused(self, within: float) -> bool:
        """Wait for the end of all connections and requests; return whether they have ended."""
        clock, state = asyncio.get_running_loop().time, self.state
        deadline = clock() + within
        while state.connections or state.tasks:
            if clock() >= deadline:
                return False
            # There is no event for the end of all.
            await asyncio.sleep(_POLL_INTERVAL)
        return True

    async def end_idle_connections(self) -> None:
        """End connections that are idle or become so within a second.

        A connection that has just come has that time for its handshake and its first request.
        """
        clock, state = asyncio.get_running_loop().time, self.state
        deadline = clock() + _FIRST_REQUEST
        while state.connections or self.acceptor:
            is_last_call = clock() >= deadline
            for connection in list(state.connections):
                connection.close_if_idle(is_last_call=is_last_call)
            if is_last_call:
                break
            await asyncio.sleep(_POLL_INTERVAL)
        await self.acceptor.close()

    async def shut_down(self, within: float) -> None:
        """End every connection once it is answered; give up what lasts longer than `within`."""
        state = self.state
        for connection in list(state.connections):
            connection.shutdown()
        if not await self.wait_until_unused(within) and state.tasks:
            _log.error("requests are given up at the stop", extra={"requests": len(state.tasks)})
            for task in list(state.tasks):
                task.cancel("the server has stopped")

    def _renew_lines(self) -> None:
        date = b""
        if self._has_date:
            date = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        self.state.default_lines = date + self._headers
