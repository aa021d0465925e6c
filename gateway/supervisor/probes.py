"""Asks children for their state. A probe returns why a child is not ready, or "" if it is."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from sluicegate.gateway.supervisor.local_http import PLAIN, Preface, ask
from sluicegate.gateway.supervisor.spec import NO_RESPONSE, Probe, ProcessSpec
from sluicegate.wire.protocol import STATE_PATH, TOKEN_HEADER, UNREADABLE, ServingState

READY_PATH = "/health/ready"
_STATE_TIMEOUT = 10.0


async def probe_http(host: str, port: int, preface: Preface = PLAIN) -> str:
    """Probe a process with a request to its readiness route."""
    try:
        status, body = await ask(host, port, READY_PATH, preface=preface)
    except OSError:
        return NO_RESPONSE
    return "" if status == 200 else f"is not ready: {_brief(body)}"  # noqa: PLR2004 - OK


async def probe_listener(listener: socket.socket, rest: Probe) -> str:
    """Probe whether a child listens on the socket that it inherited.

    If the child listens, return the result of the probe `rest`. Workers share a port, so a request
    cannot probe a certain worker. But each worker has its own socket, whose state shows whether the
    worker listens.
    """
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen yet"
    return await rest()


async def probe_valkey(path: str) -> str:
    """Probe a Valkey with PING on its Unix socket.

    Valkey responds with PONG once its data is loaded.
    """
    answer = await _ping(path)
    if not answer:
        return NO_RESPONSE
    return "" if answer.startswith(b"+PONG") else f"is not ready: {_brief(answer)}"


async def broken_models(backends: Iterable[ProcessSpec], token: str) -> dict[str, str]:
    """Return why models cannot be served, by the name of the model.

    Backends that do not respond are left out. Raises no errors.
    """
    found: dict[str, str] = {}
    for backend in backends:
        address = urlsplit(backend.address or "")
        try:
            _, body = await ask(
                address.hostname or "",
                address.port or 0,
                STATE_PATH,
                headers={TOKEN_HEADER: token} if token else {},
                timeout=_STATE_TIMEOUT,
            )
            found |= msgspec.msgpack.decode(body, type=ServingState).problems
        except (OSError, *UNREADABLE):
            continue  # the backend's log explains why it does not respond
    return found


async def _ping(path: str) -> bytes:
    """Return the response to PING, or empty bytes if there is no response within a second."""
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
