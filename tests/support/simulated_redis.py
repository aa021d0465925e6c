"""Talks to a simulated Redis without a network, and to a real one in the same way."""

import asyncio
from typing import Any

import hiredis
from typing_extensions import override

from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.server import RedisServer

Word = str | bytes | int
Words = tuple[Word, ...]
_NOTHING = object()


class _Transport(asyncio.Transport):
    """Keeps what a server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    @override
    def write(self, data: Any) -> None:
        self.written += data


class SimulatedClient:
    """A connection to a simulated server. The version of the protocol is 2 before `HELLO`."""

    def __init__(self, server: RedisServer) -> None:
        self._protocol = server.protocol()
        self._transport = _Transport()
        self._protocol.connection_made(self._transport)

    def send(self, *commands: Words) -> None:
        """Send commands together."""
        self._protocol.data_received(pack_commands(*commands))

    def receive(self) -> list[Any]:
        """Return the replies since the last call."""
        written, self._transport.written = self._transport.written, b""
        return parse_replies(written)

    def call(self, *words: Word) -> Any:
        """Send a command. Return its reply, which can be an error, and drop earlier replies."""
        self.send(words)
        return self.receive()[-1]

    def close(self) -> None:
        """Close the connection."""
        self._protocol.connection_lost(None)


def simulated_redis(clock: float = 1_700_000_000.0) -> RedisServer:
    """Return a server whose clock stands still."""
    return RedisServer(RedisData(clock=lambda: clock))


def parse_replies(data: bytes) -> list[Any]:
    """Return the replies in `data`."""
    reader = hiredis.Reader(notEnoughData=_NOTHING)
    reader.feed(data)
    return list(iter(reader.gets, _NOTHING))


def pack_commands(*commands: Words) -> bytes:
    """Return the bytes of commands."""
    return b"".join(map(_pack, commands))


def _pack(words: Words) -> bytes:
    # hiredis wrongly annotates the tuple as having one element.
    return hiredis.pack_command(words)  # type: ignore[arg-type,no-any-return]
