"""Options of connections that are gone already are no errors."""

import asyncio

import uvloop

from gateway.tcp_keepalive import discard_at_close


def test_a_connection_that_is_closed_is_discarded_without_an_error() -> None:
    """A backend that is killed closes its side before ours: uvloop's socket has no descriptor."""

    async def close_then_discard() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        connection = transport.get_extra_info("socket")
        transport.abort()
        try:
            while connection.fileno() >= 0:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)

            discard_at_close(transport)
        finally:
            server.close()

    uvloop.run(asyncio.wait_for(close_then_discard(), 10))
