"""Asks an application of this process, without a connection, as a request over HTTP would."""

import asyncio
from typing import Any, NamedTuple
from urllib.parse import quote

from litestar.types import ASGIApp, Message

from gateway.api.http import Headers


class ApplicationRequest(NamedTuple):
    """Holds a request to an application; its path is decoded."""

    method: str
    path: str
    body: bytes = b""


class ApplicationReply(NamedTuple):
    """Holds an application's answer; names of headers are in lower case."""

    status: int
    headers: Headers
    body: bytes


async def call_application(
    app: ASGIApp, request: ApplicationRequest, headers: Headers
) -> ApplicationReply:
    """Return the answer of `app`; nobody disconnects meanwhile."""
    status, lines, chunks = 500, Headers(), list[bytes]()
    waiting = [{"type": "http.request", "body": b"", "more_body": False}]
    # Of a body in parts the application counts the memory.
    waiting.append({"type": "http.request", "body": request.body, "more_body": True})

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Future()

    async def send(message: Message) -> None:
        nonlocal status, lines
        if message["type"] == "http.response.start":
            status, lines = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            chunks.append(message["body"])

    await app(_scope(request, headers), receive, send)
    return ApplicationReply(
        status, [(name.lower(), value) for name, value in lines], b"".join(chunks)
    )


def _scope(request: ApplicationRequest, headers: Headers) -> Any:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-length", b"%d" % len(request.body))],
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }
