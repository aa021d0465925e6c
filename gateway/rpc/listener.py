"""Listens for calls of gRPC beside the worker's HTTP listener, in the same event loop.

Clients connect to `CallFront`, which bounds them; grpcio listens on a private socket behind it.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Final

import grpc
import grpc.aio
from litestar.types import ASGIApp

from sluicegate.gateway.api.incoming_request import IncomingBodies
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.draining import Draining, Stop
from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.gateway.rpc.front import CallFront, private_address
from sluicegate.gateway.rpc.handler import RpcHandler
from sluicegate.gateway.rpc.in_process import InProcessCalls
from sluicegate.gateway.rpc.messages import MessageTable
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import TaskScope
from sluicegate.wire.http.request_head import MAX_HEAD_BYTES
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.listening import open_socket

_MOST_STREAMS: Final = 256
"""Calls of a connection at a time; more of them wait at the client."""
_SHORTEST_PING_INTERVAL: Final = 10.0
_PING_TIMEOUT: Final = 20.0


@contextlib.asynccontextmanager
async def rpc_listener(
    app: ASGIApp,
    settings: Settings,
    *,
    steps: RequestSteps,
    bodies: IncomingBodies,
    keys: KeyRing,
    max_message_bytes: int,
    draining: Draining,
    stop: asyncio.Event,
    edge: ListenerEdge | None = None,
    unsent: UnsentAnswers | None = None,
) -> AsyncIterator[None]:
    """Listen on `settings.grpc_port` while this is entered, until `stop` is set.

    `edge` handles what comes before HTTP/2; `unsent` bounds answers. At the end, calls in progress
    and the requests that they began have `settings.drain` seconds. Without a supervisor, the delay
    for load balancers comes first.

    Raises:
        ConfigurationError: the port cannot be listened on.
    """
    with (
        contextlib.closing(_open_socket(settings)) as listener,
        private_address() as (own, address),
    ):
        server = grpc.aio.server(
            options=_options(settings, max_message_bytes),
            maximum_concurrent_rpcs=settings.max_connections,
        )
        server.add_insecure_port(own)
        loop = asyncio.get_running_loop()
        front = CallFront(
            address,
            edge=edge or ListenerEdge(),
            timeouts=_timeouts(settings),
            unsent=unsent or UnsentAnswers(clock=loop.time),
        )
        async with TaskScope(drain=settings.drain) as tasks:
            is_draining = asyncio.Event()
            calls = InProcessCalls(
                app,
                steps,
                tasks,
                messages=(messages := MessageTable()),
                keys=keys,
                bodies=bodies,
                most=settings.max_connections,
            )
            handler = RpcHandler(
                calls,
                keys=keys,
                messages=messages,
                draining=is_draining,
                receive_timeout=settings.head_timeout,
                most_calls=settings.max_connections,
                unsent=front.unsent,
            )
            server.add_generic_rpc_handlers((handler,))
            await server.start()

            async def drain() -> None:
                await stop.wait()
                if not draining.is_supervised and (not isinstance(stop, Stop) or stop.is_graceful):
                    await asyncio.sleep(draining.delay)
                is_draining.set()
                until = loop.time() + settings.drain
                await front.stop_accepting(listener)
                await server.stop(max(0.0, until - loop.time()))
                # Requests that calls have begun go on.
                tasks.drain = max(0.0, until - loop.time())

            async with front.listening(listener):
                drained = asyncio.create_task(drain())
                try:
                    yield
                    await drained
                finally:
                    drained.cancel()
                    await server.stop(None)


def _open_socket(settings: Settings) -> socket.socket:
    """Return a socket bound to the listener's address.

    Raises:
        ConfigurationError: it cannot be bound.
    """
    host, port = settings.host, settings.grpc_port
    try:
        # The workers of a supervisor share the port; a worker alone must not share another's.
        return open_socket(host, port, shares_port=settings.listen_fd is not None)
    except OSError as error:
        raise ConfigurationError(
            f"gRPC cannot listen on {host}:{port} ({error.strerror}); choose another"
            " `SLUICEGATE_GRPC_PORT`"
        ) from error


def _timeouts(settings: Settings) -> ConnectionTimeouts:
    return ConnectionTimeouts(
        head=settings.head_timeout, idle=settings.keep_alive, connections=settings.max_connections
    )


def _options(settings: Settings, max_message_bytes: int) -> list[tuple[str, int]]:
    idle = max(1000, round(settings.keep_alive * 1000))
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_concurrent_streams", _MOST_STREAMS),
        # Applies to decoded metadata. Clients are told it, and a call with more is refused.
        ("grpc.max_metadata_size", MAX_HEAD_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_HEAD_BYTES),
        ("grpc.server_handshake_timeout_ms", round(settings.head_timeout * 1000)),
        ("grpc.max_connection_idle_ms", idle),
        ("grpc.keepalive_time_ms", idle),
        ("grpc.keepalive_timeout_ms", round(_PING_TIMEOUT * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(_SHORTEST_PING_INTERVAL * 1000)),
    ]
