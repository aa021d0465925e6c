"""Options of TCP are set on every connection, and one that is closed already harms nobody."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, discard_at_close


async def _use_a_closed_connection() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        DEFAULT_KEEPALIVE.apply(writer.transport)
        keepalive = writer.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_KEEPALIVE
        )
        assert keepalive
        await reader.read()
        writer.transport.abort()
        await writer.wait_closed()

        DEFAULT_KEEPALIVE.apply(writer.transport)
        discard_at_close(writer.transport)


@pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_connection_that_is_closed_can_be_told_to_discard(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_use_a_closed_connection())
