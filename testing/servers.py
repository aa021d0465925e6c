"""Closes servers of asyncio so that no transport of a connection stays open."""

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Stop accepting, let the handlers of all accepted connections begin, and close the server.

    If a server is closed before an accepted connection has a transport, Python 3.11 opens none. The
    connection stays open, and Python warns when it frees the socket. The caller closes the
    connections.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)
    # Iterations to accept, open the transport, tell the protocol, and begin the handler.
    for _ in range(4):
        await asyncio.sleep(0)
    server.close()
