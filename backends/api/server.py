"""Runs uvicorn on a listening socket, and closes it so that no accepted call is lost."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from typing_extensions import override

from backends.api.bounded import ConnectionTimeouts
from backends.api.repeated_heads import RepeatedHeadProtocol
from backends.api.routes import Routes
from backends.api.tls import ServerTls
from backends.api.write_coalescing import WriteCoalescingProtocol
from backends.errors import StartProblem

_BACKLOG = 2048
# Longer than any client keeps a connection, so that it is never the server that closes first.
_KEEP_ALIVE = 120
# uvicorn's ticks, ten a second, between two checks for timed-out connections.
_TICKS = 5
_POLL_INTERVAL = 0.05
_FIRST_CALL = 1.0


class BackendServer(uvicorn.Server):
    """Runs uvicorn without its signal handlers: ours drain first and exit with 0."""

    def __init__(
        self,
        application: Routes,
        tls: ServerTls | None = None,
        waits: ConnectionTimeouts | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=partial(RepeatedHeadProtocol, waits=waits, calls=application.calls),  # type: ignore[arg-type]  # makes one
                ws="none",
                lifespan="off",
                loop="none",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=1,
                ssl_context_factory=None if tls is None else lambda *_: tls.context,
            )
        )

    @override
    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if counter % _TICKS == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, WriteCoalescingProtocol):
                    connection.end_if_late(now)
        return await super().on_tick(counter)

    def make_answers_last(self) -> None:
        """Have every answer from now on be the last one of its connection."""
        last = (b"connection", b"close")
        self.config.encoded_headers.append(last)  # for when the server renews its headers
        self.server_state.default_headers = [*self.server_state.default_headers, last]

    def stop_accepting(self, listener: socket.socket) -> None:
        """Accept nothing any more."""
        for server in self.servers:
            server.close()
        listener.close()

    async def end_idle_connections(self) -> None:
        """End idle connections until there are none, for a second at most.

        A connection that was just accepted gets that time for its first request.
        """
        for _ in range(round(_FIRST_CALL / _POLL_INTERVAL)):
            for connection in list(self.server_state.connections):
                if isinstance(connection, WriteCoalescingProtocol):
                    connection.end_if_idle()
            if not self.server_state.connections:
                return
            await asyncio.sleep(_POLL_INTERVAL)

    @contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """Listen; connections wait until the models are loaded.

    Raises:
        StartProblem: the address cannot be bound; the message says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # A listening socket is what makes another bind with SO_REUSEADDR fail.
            listener.listen(_BACKLOG)
        except OSError as error:
            raise StartProblem(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what is there or choose "
                "another port with --port"
            ) from None
        listener.setblocking(False)
        yield listener
