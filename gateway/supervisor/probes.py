"""Probes children for readiness."""

import asyncio
import contextlib
import socket

from gateway.supervisor.local_http import ask
from gateway.supervisor.spec import Probe

READY_PATH = "/health/ready"


class ProcessStarted:
    """Ready when it runs, for a process without a readiness probe."""

    async def missing(self) -> str:
        """Return nothing."""
        return ""


class HttpReady:
    """Ready when its readiness route answers 200."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def missing(self) -> str:
        """Return why it is not."""
        try:
            status, body = await ask(self._host, self._port, READY_PATH)
        except OSError:
            return "does not answer yet"
        return "" if status == 200 else f"is not ready: {_brief(body)}"  # noqa: PLR2004 - OK


class ListenerReady:
    """Ready when it listens on the socket handed to it, and then `rest` is ready.

    Workers share a port, so that a request cannot choose one; the socket shows which one listens.
    """

    def __init__(self, listener: socket.socket, rest: Probe) -> None:
        self._listener = listener
        self._rest = rest

    async def missing(self) -> str:
        """Return why it is not."""
        if not self._listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return "does not listen yet"
        return await self._rest.missing()


class ValkeyReady:
    """Ready when it answers PING on its Unix socket, which it does once its data is loaded."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def missing(self) -> str:
        """Return why it is not."""
        try:
            async with asyncio.timeout(1.0):
                answer = await self._ping()
        except (OSError, TimeoutError):
            return "does not answer yet"
        return "" if answer.startswith(b"+PONG") else f"is not ready: {_brief(answer)}"

    async def answers(self) -> bool:
        """Return whether it answers at all, be it that its data is still being loaded."""
        try:
            async with asyncio.timeout(1.0):
                return bool(await self._ping())
        except (OSError, TimeoutError):
            return False

    async def _ping(self) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(b"PING\r\n")
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _brief(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200]
