"""A server of asyncio that is closed leaves no connection open, whenever the last one arrives."""

import asyncio
import gc
import socket
import warnings

import pytest

from testing.servers import close_server

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("iterations", range(6))
async def test_a_connection_that_arrives_last_has_a_handler_or_no_transport(
    iterations: int,
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    await asyncio.sleep(0)  # from now on it accepts
    with (
        warnings.catch_warnings(record=True) as told,
        socket.create_connection(server.sockets[0].getsockname()),
    ):
        for _ in range(iterations):
            await asyncio.sleep(0)
        await close_server(server)
        await asyncio.sleep(0)
        gc.collect()

    assert told == []
