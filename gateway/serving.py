"""Serves an ASGI application on one socket until told to stop, then lets requests in flight end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn
from litestar.types import ASGIApp
from typing_extensions import override

from gateway.corked import CorkedProtocol
from gateway.errors import ConfigurationError
from gateway.patience import Patience, end_late_connections

_BACKLOG = 2048


class _Server(uvicorn.Server):
    """A server whose signals are its owner's business."""

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    drain: float,
    stop: asyncio.Event,
    protocol: Callable[..., asyncio.Protocol] = CorkedProtocol,
    patience: Patience | None = None,
) -> None:
    """Serve `app` on `listener`; after `stop` is set, wait up to `drain` for open requests.

    Connections are bounded by `patience`, in number and in how long they wait for a request.

    The listener is bound and starts to listen here: until then nobody can connect.
    """
    patience = patience or Patience()
    config = uvicorn.Config(
        app,
        loop="none",
        http=partial(protocol, patience=patience, turned_away=set()),  # type: ignore[arg-type]  # it makes one
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
    server = _Server(config)

    async def watch() -> None:
        await stop.wait()
        server.should_exit = True

    async with asyncio.TaskGroup() as tasks:
        watchers = [
            tasks.create_task(watch()),
            tasks.create_task(end_late_connections(server.server_state.connections)),
        ]
        await server.serve(sockets=[listener])
        for watcher in watchers:
            watcher.cancel()


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
