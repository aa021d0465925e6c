"""Probes children for readiness: a probe returns why a child is not ready, or nothing."""

import asyncio
import contextlib
import socket

from gateway.supervisor.local_http import PLAIN, Preface, ask
from gateway.supervisor.spec import Probe

READY_PATH = "/health/ready"


async def probe_http(host: str, port: int, preface: Preface = PLAIN) -> str:
    """Probe a process by its readiness route."""
    try:
        status, body = await ask(host, port, READY_PATH, preface=preface)
    except OSError:
        return "does not answer yet"
    return "" if status == 200 else f"is not ready: {_brief(body)}"  # noqa: PLR2004 - OK


async def probe_listener(listener: socket.socket, rest: Probe) -> str:
    """Probe whether a process listens on the socket handed to it, then by `rest`.

    Workers share a port, so that a request cannot choose one; the socket shows which one listens.
    """
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen yet"
    return await rest()


async def probe_valkey(path: str) -> str:
    """Probe a Valkey by PING on its Unix socket, which it answers once its data is loaded."""
    answer = await _ping(path)
    if not answer:
        return "does not answer yet"
    return "" if answer.startswith(b"+PONG") else f"is not ready: {_brief(answer)}"


async def valkey_answers(path: str) -> bool:
    """Return whether a Valkey answers at all, be it that its data is still being loaded."""
    return bool(await _ping(path))


async def _ping(path: str) -> bytes:
    """Return the answer to PING, nothing without one within a second."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"PING\r\n")
                await writer.drain()
                return await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return b""


def _brief(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200]
