"""The process of the operators' listener: makes its objects, serves until told to stop."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import uvicorn
from litestar import Litestar
from typing_extensions import override

from gateway.admin.app import build_admin
from gateway.admin.publishing import Publisher
from gateway.errors import ConfigurationError
from gateway.ledger.ledger import Ledger
from gateway.redis_connection import connect
from gateway.runtime.control import Control
from gateway.settings import Settings
from gateway.telemetry.logs import configure_logging

_TIMEOUT = 2.0


class _Server(uvicorn.Server):
    """A server whose signals are its owner's business."""

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_admin(settings: Settings, *, stop: asyncio.Event) -> None:
    """Serve operators until `stop`.

    Raises:
        ConfigurationError: there is no admin key, or the address cannot be had.
    """
    configure_logging(settings.log_level)
    if not settings.admin_key:
        raise ConfigurationError("there is no admin key; set `SLUICEGATE_ADMIN_KEY`")
    async with contextlib.AsyncExitStack() as stack:
        state = connect(settings.state_url, timeout=_TIMEOUT)
        stack.push_async_callback(state.aclose)
        cache = connect(settings.cache_url, timeout=_TIMEOUT)
        stack.push_async_callback(cache.aclose)
        ledger = stack.enter_context(Ledger(settings.ledger))
        control = Control(state)
        publisher = Publisher(
            control=control,
            ledger=ledger,
            settings=settings,
            clock=time.time,  # noqa: TID251 - shown to operators
        )
        app = build_admin(
            settings=settings,
            control=control,
            cache_redis=cache,
            ledger=ledger,
            publisher=publisher,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.start(stop))
            await _serve(app, settings, stop)


async def _serve(app: Litestar, settings: Settings, stop: asyncio.Event) -> None:
    with _listener(settings) as listener:
        config = uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.drain)),
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


def _listener(settings: Settings) -> socket.socket:
    if settings.listen_fd is not None:
        return socket.socket(fileno=settings.listen_fd)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.admin_host, settings.admin_port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"{settings.admin_host}:{settings.admin_port} cannot be listened on"
            f" ({error.strerror}); choose another `SLUICEGATE_ADMIN_PORT`"
        ) from error
    return listener
