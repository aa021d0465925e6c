"""Serves an ASGI application on one socket until told to stop, then lets requests in flight end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from litestar.types import ASGIApp
from typing_extensions import override

from gateway.corked import CorkedProtocol
from gateway.errors import ConfigurationError

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
) -> None:
    """Serve `app` on `listener`; after `stop` is set, wait up to `drain` for open requests.

    The listener is bound and starts to listen here: until then nobody can connect.
    """
    config = uvicorn.Config(
        app,
        loop="none",
        http=protocol,  # type: ignore[arg-type]  # anything that makes one,
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
        watcher = tasks.create_task(watch())
        await server.serve(sockets=[listener])
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
