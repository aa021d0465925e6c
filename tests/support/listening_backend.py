"""Runs a whole backend in this process on a real socket, with TLS or without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.backends.api.tls import ServerTls
from sluicegate.gateway.types import BackendId, Endpoint, RegionName
from testing.model_repository import DIMENSIONS
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor


class ListeningBackend(msgspec.Struct, frozen=True):
    """A backend and where it listens."""

    backend: Backend
    port: int
    scheme: str

    def endpoint(self, *, scheme: str = "", server_name: str = "") -> Endpoint:
        """Return the endpoint as a gateway is given it, with another scheme or name."""
        return Endpoint(
            backend=BackendId("eu-0"),
            region=RegionName("eu"),
            url=f"{scheme or self.scheme}://127.0.0.1:{self.port}",
            server_name=server_name,
        )


@asynccontextmanager
async def listening_backend(
    models: Path, tls: ServerTls | None = None, *, runs_graphs: bool = False, **settings: Any
) -> AsyncIterator[ListeningBackend]:
    """Serve a repository whose graphs answer at once, or whose graphs are run."""
    executor = None if runs_graphs else DummyExecutor(dimensions=DIMENSIONS)
    with bind("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        async with running_backend(models, executor, **settings) as backend:
            server = BackendServer(backend.routes, tls)
            serving = asyncio.create_task(server.serve(listener))
            try:
                yield ListeningBackend(backend, port, "http" if tls is None else "https")
            finally:
                server.stop()
                await serving
