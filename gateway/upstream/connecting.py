"""TCP connections to a name of several addresses, some of which may be silent."""

import asyncio
import socket

import aiohappyeyeballs

MOST_BETWEEN = 0.1
"""Seconds until the next address is tried as well: the least that RFC 8305, 5, recommends."""
_REMEMBERED = 30.0
_MOST_REMEMBERED = 1_000


class Connector:
    """Connects to the first address of a name that answers. Belongs to one event loop.

    The order is that of the name server, which may spread connections in this way. Only addresses
    that others overtook are tried last for a while, so that a silent one does not delay every
    connection.
    """

    def __init__(self) -> None:
        self._overtaken: dict[str, float] = {}

    async def connect(
        self, host: str, port: int, *, patience: float | None = None
    ) -> socket.socket:
        """Return a connected socket that does not block.

        All addresses are tried within half of `patience`, the seconds that the caller waits.

        Raises:
            OSError: the name has no address, or none of them takes a connection.
        """
        # Looked up here: the look-up of uvloop's own `create_connection` outlives a cancelled one,
        # and its failure is logged.
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
        now = loop.time()
        found.sort(key=lambda each: self._overtaken.get(str(each[4][0]), 0.0) > now)
        between = MOST_BETWEEN if patience is None else min(MOST_BETWEEN, patience / 2 / len(found))
        try:
            connected = await aiohappyeyeballs.start_connection(
                found, happy_eyeballs_delay=between, interleave=0
            )
        except RuntimeError as error:  # uvloop's, of a socket
            raise OSError(str(error)) from error
        try:
            taken = str(connected.getpeername()[0])
        except OSError:  # it was reset at once
            connected.close()
            raise
        self._remember([str(each[4][0]) for each in found], taken, now)
        return connected

    def _remember(self, tried: list[str], taken: str, now: float) -> None:
        self._overtaken.pop(taken, None)
        overtaken = tried[: tried.index(taken)] if taken in tried else []
        if len(self._overtaken) + len(overtaken) > _MOST_REMEMBERED:
            self._overtaken.clear()
        self._overtaken.update(dict.fromkeys(overtaken, now + _REMEMBERED))
