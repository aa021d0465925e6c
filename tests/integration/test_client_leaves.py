"""A client that closes its connection is noticed by the server itself, without a task per call."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.wire.protocol import CALL_PATH, Task
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import until
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio


async def test_the_row_of_a_client_that_left_never_runs(tmp_path: Path) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    models = write_repository(tmp_path / "models")
    async with running_backend(models, executor) as backend:
        with bind("127.0.0.1", 0) as listener:
            server = BackendServer(backend.routes)
            serving = asyncio.create_task(server.serve(listener))
            port = listener.getsockname()[1]
            first = await send(port, call_of(backend, "good"))
            await until(lambda: gate.arrived == 1)
            gone = await send(port, call_of(backend, "bad"))
            await until(lambda: backend.engine.report().queued_rows == 1)

            gone[1].close()
            await until(lambda: backend.engine.calls_in_flight == 1)
            gate.open()
            answered = await first[0].readuntil(b"\r\n")
            await until(lambda: backend.engine.report().queued_rows == 0)
            # The connection that was kept is answered again.
            first[1].write(call_of(backend, "film"))
            again = await first[0].readuntil(b"HTTP/1.1 200 OK")

            first[1].close()
            server.stop()
            await serving
    assert answered.startswith(b"HTTP/1.1 200")
    assert again.endswith(b"200 OK")
    assert len(executor.shapes) == 2


async def test_a_client_that_left_after_a_large_call_is_noticed(tmp_path: Path) -> None:
    """The end of its body fills the server's buffer, which stops reading."""
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    models = write_repository(tmp_path / "models")
    async with running_backend(models, executor) as backend:
        with bind("127.0.0.1", 0) as listener:
            server = BackendServer(backend.routes)
            serving = asyncio.create_task(server.serve(listener))
            call = call_of(backend, *["good"] * 4_000)
            _, writer = await send(listener.getsockname()[1], call[:1_000])
            await until(lambda: bool(server.state.tasks))
            writer.write(call[1_000:])
            await until(lambda: backend.engine.calls_in_flight == 1)

            writer.close()

            await until(lambda: backend.engine.calls_in_flight == 0)
            gate.open()
            server.stop()
            await serving
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def call_of(backend: Backend, *texts: str) -> bytes:
    body = msgspec.msgpack.encode(backend.call("tiny", Task.EMBED, list(texts)))
    head = f"POST {CALL_PATH} HTTP/1.1\r\nhost: b\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def send(port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    return reader, writer
