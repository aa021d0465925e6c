"""Listens for calls of gRPC beside the worker's HTTP listener, in the same event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
from litestar.types import ASGIApp

from gateway.auth.key_ring import KeyRing
from gateway.errors import ConfigurationError
from gateway.http.draining import Draining, Stop
from gateway.http.listener_tls import ListenerTls
from gateway.http.unsent_answers import UnsentAnswers
from gateway.rpc.application_client import ApplicationClient
from gateway.rpc.handler import RpcHandler
from gateway.rpc.messages import MessageTable
from gateway.settings import Settings
from gateway.tasks import TaskScope

_MOST_STREAMS: Final = 256
"""Calls of a connection at a time; more of them wait at the client."""
_SHORTEST_PING_INTERVAL: Final = 10.0
_PING_TIMEOUT: Final = 20.0


@contextlib.asynccontextmanager
async def rpc_listener(
    app: ASGIApp,
    settings: Settings,
    *,
    keys: KeyRing,
    max_message_bytes: int,
    draining: Draining,
    stop: asyncio.Event,
    tls: ListenerTls | None = None,
    unsent: UnsentAnswers | None = None,
) -> AsyncIterator[None]:
    """Listen on `settings.grpc_port` while this is entered, until `stop` is set.

    Calls come over `tls`, if there is any; `unsent` bounds their answers. At the end those under
    way, and requests that they left, have `settings.drain` seconds, after the delay for load
    balancers where no supervisor has waited for it.

    Raises:
        ConfigurationError: the port cannot be listened on.
    """
    server = grpc.aio.server(
        options=_options(settings, max_message_bytes),
        maximum_concurrent_rpcs=settings.max_connections,
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    async with TaskScope(drain=settings.drain) as tasks:
        is_draining, loop = asyncio.Event(), asyncio.get_running_loop()
        client = ApplicationClient(app, tasks, most=settings.max_connections)
        handler = RpcHandler(
            client,
            keys=keys,
            messages=MessageTable(),
            draining=is_draining,
            receive_timeout=settings.head_timeout,
            unsent=unsent or UnsentAnswers(clock=loop.time),
        )
        server.add_generic_rpc_handlers((handler,))
        _bind(server, address, tls)
        await server.start()

        async def drain() -> None:
            await stop.wait()
            if not draining.is_supervised and (not isinstance(stop, Stop) or stop.is_graceful):
                await asyncio.sleep(draining.delay)
            is_draining.set()
            until = loop.time() + settings.drain
            await server.stop(settings.drain)
            # What calls have left goes on.
            tasks.drain = max(0.0, until - loop.time())

        drained = asyncio.create_task(drain())
        try:
            yield
            await drained
        finally:
            drained.cancel()
            await server.stop(None)


def _bind(server: Any, address: str, tls: ListenerTls | None) -> None:
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, _credentials(tls))
    except RuntimeError as error:
        raise ConfigurationError(
            f"{address} cannot be listened on; choose another `SLUICEGATE_GRPC_PORT`"
        ) from error


def _credentials(tls: ListenerTls) -> Any:
    """Return what shows the certificate that `tls` has when a client connects."""
    shown = tls.pem

    def renewed() -> Any:  # in threads of gRPC, at each handshake
        nonlocal shown
        if tls.pem is shown:
            return None
        shown = tls.pem
        return grpc.ssl_server_certificate_configuration([shown])

    first = grpc.ssl_server_certificate_configuration([shown])
    return grpc.dynamic_ssl_server_credentials(first, renewed)


def _options(settings: Settings, max_message_bytes: int) -> list[tuple[str, int]]:
    idle = max(1000, round(settings.keep_alive * 1000))
    return [
        # The workers of a supervisor share the port; a worker alone must not share another's.
        ("grpc.so_reuseport", int(settings.listen_fd is not None)),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_concurrent_streams", _MOST_STREAMS),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", round(settings.head_timeout * 1000)),
        ("grpc.max_connection_idle_ms", idle),
        ("grpc.keepalive_time_ms", idle),
        ("grpc.keepalive_timeout_ms", round(_PING_TIMEOUT * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(_SHORTEST_PING_INTERVAL * 1000)),
    ]
