"""Connects to a host name of several addresses, some of which may not answer (RFC 8305)."""

import asyncio
import socket

import aiohappyeyeballs

MAX_ATTEMPT_DELAY = 0.1
"""Seconds until the next address is tried as well: the minimum that RFC 8305, 5, recommends."""
_SLOW_FOR = 30.0
_MAX_SLOW = 1_000


class Connector:
    """Connects to the first address of a name that answers. Belongs to one event loop.

    Addresses are tried in the order of the name server, which may spread load in this way. Those
    that another overtook are tried last for a while, so that a silent one does not delay every
    connection.
    """

    def __init__(self) -> None:
        self._slow_until: dict[str, float] = {}

    async def connect(
        self, host: str, port: int, *, connect_timeout: float | None = None
    ) -> socket.socket:
        """Return a connected socket that does not block.

        Every address is tried within half of `connect_timeout` seconds; the caller ends the wait.

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
        found.sort(key=lambda each: self._slow_until.get(str(each[4][0]), 0.0) > now)
        delay = (
            MAX_ATTEMPT_DELAY
            if connect_timeout is None
            else min(MAX_ATTEMPT_DELAY, connect_timeout / 2 / len(found))
        )
        try:
            connected = await aiohappyeyeballs.start_connection(
                found, happy_eyeballs_delay=delay, interleave=0
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
        self._slow_until.pop(taken, None)
        slower = tried[: tried.index(taken)] if taken in tried else []
        if len(self._slow_until) + len(slower) > _MAX_SLOW:
            self._slow_until.clear()
        self._slow_until.update(dict.fromkeys(slower, now + _SLOW_FOR))
