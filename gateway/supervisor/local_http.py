"""Sends one HTTP request to a listener on this machine.

httpx is not used, because importing it takes 60 ms of CPU time and 7.5 MB of memory. The whole
supervisor takes only 27 MB, and a longer start of the supervisor delays its children.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple

MAX_ANSWER_BYTES = 16 * 1024 * 1024


class Preface(NamedTuple):
    """What a client sends before HTTP: the bytes `prefix`, and then perhaps a TLS handshake.

    `is_tls` says whether the client begins a TLS handshake.
    """

    is_tls: bool = False
    prefix: bytes = b""


PLAIN = Preface()


async def ask(
    host: str,
    port: int,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    preface: Preface = PLAIN,
    timeout: float = 1.0,  # noqa: ASYNC109 - the whole exchange has one deadline
) -> tuple[int, bytes]:
    """Send a request. Return the status and the body of the response.

    TLS certificates are not verified, because the caller itself has opened the listening socket.

    Raises:
        OSError: nothing listens on the port, the timeout has passed, or the response is not HTTP.
    """
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: [{host}]:{port}" if ":" in host else f"host: {host}:{port}",
        "connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if method != "GET":
        lines.append("content-length: 0")
    request = "\r\n".join([*lines, "", ""]).encode()
    try:
        async with asyncio.timeout(timeout):
            answer = await _exchange(host, port, request, preface)
    except TimeoutError as error:
        raise OSError(f"no response within {timeout:g} s") from error
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if not separator or len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004 - version, status
        raise OSError("the response is not HTTP")
    return int(words[1]), body


async def _exchange(host: str, port: int, request: bytes, preface: Preface) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(preface.prefix)
        if preface.is_tls:
            await writer.start_tls(_unverified(), server_hostname=host)
        writer.write(request)
        await writer.drain()
        answer = bytearray()
        while chunk := await reader.read(65_536):
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise OSError("the response is too large")
        return bytes(answer)
    finally:
        writer.transport.abort()  # closing TLS properly would wait for the peer


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
