"""Opens a worker's gRPC listener. Imports the optional gRPC libraries only if gRPC is enabled."""

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from litestar.types import ASGIApp

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.incoming_request import IncomingBodies
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.dialects.registry import DIALECTS
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.gateway.settings import Settings
from sluicegate.wire.installing import install_command


def dialects_of(settings: Settings) -> Sequence[Dialect]:
    """Return the dialects (APIs of other products) that a worker serves.

    Raises:
        ConfigurationError: gRPC is enabled but not installed.
    """
    if not settings.grpc_port:
        return DIALECTS
    try:
        from sluicegate.gateway.rpc.infer_route import rpc_dialect  # noqa: PLC0415 - gRPC is optional
    except ImportError as error:
        raise _not_installed(error) from error
    return (*DIALECTS, rpc_dialect())


def open_rpc_listener(
    app: ASGIApp,
    settings: Settings,
    *,
    steps: RequestSteps,
    bodies: IncomingBodies,
    keys: KeyRing,
    document: Document,
    draining: Draining,
    stop: asyncio.Event,
    edge: ListenerEdge | None = None,
    unsent: UnsentAnswers | None = None,
) -> AbstractAsyncContextManager[None]:
    """Return a context that runs the worker's gRPC listener, or does nothing if gRPC is disabled.

    Raises:
        ConfigurationError: gRPC is enabled but not installed.
    """
    if not settings.grpc_port:
        return contextlib.nullcontext()
    try:
        from sluicegate.gateway.rpc.listener import rpc_listener  # noqa: PLC0415 - gRPC is optional
    except ImportError as error:
        raise _not_installed(error) from error
    return rpc_listener(
        app,
        settings,
        steps=steps,
        bodies=bodies,
        keys=keys,
        max_message_bytes=document.request.max_body_bytes,
        draining=draining,
        stop=stop,
        edge=edge,
        unsent=unsent,
    )


def _not_installed(error: ImportError) -> ConfigurationError:
    return ConfigurationError(
        f"gRPC cannot be served ({error}): run {install_command('gateway,grpc')}, or unset"
        " `SLUICEGATE_GRPC_PORT`"
    )
