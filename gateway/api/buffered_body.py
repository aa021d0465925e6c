"""Reads bodies for middleware, before the application is given them."""

import asyncio
from typing import Final

from litestar.types import (
    HTTPReceiveMessage,
    HTTPRequestEvent,
    HTTPScope,
    Receive,
    WebSocketReceiveMessage,
)

from gateway.api.http import ClientDisconnected
from gateway.api.request_headers import parse_timeout
from gateway.errors import InvalidRequest
from gateway.http.byte_budget import ByteBudget, HeldBytes
from gateway.runtime.runtime import Runtime
from gateway.types import KeyId

_LONGEST_NUMBER: Final = 18
_MAX_LARGE_BODIES: Final = 16


def hold_body(budget: ByteBudget, runtime: Runtime, key: KeyId) -> HeldBytes:
    """Return what a key's body holds. The budget has room for 16 of the largest bodies."""
    budget.limit_bytes = _MAX_LARGE_BODIES * runtime.document.request.max_body_bytes
    return HeldBytes(budget, key)


class BufferedBody:
    """Reads a body up to the document's bound, and gives it to the application.

    Of a longer one, such as a file that is uploaded, the rest is left to the application.
    """

    def __init__(self, receive: Receive, runtime: Runtime, held: HeldBytes) -> None:
        self.runtime = runtime
        self._receive = receive
        self.held = held
        self.is_whole = False
        self._is_given = False
        self.content = b""

    def deadline(self, scope: HTTPScope) -> float:
        """Return until when it has to be there, in the loop's time."""
        deadline = self.runtime.document.deadline
        value = dict(scope["headers"]).get(b"x-request-timeout")
        try:
            allowed = parse_timeout(value, deadline)
        except InvalidRequest:
            allowed = deadline.default  # the application refuses it
        return asyncio.get_running_loop().time() + allowed

    async def read(self, scope: HTTPScope) -> bytes:
        """Return what arrives of it, and note whether that is all.

        Raises:
            Overloaded: there are too many large bodies.
            ClientDisconnected: the caller is gone.
        """
        limit = self.runtime.document.request.max_body_bytes
        declared = dict(scope["headers"]).get(b"content-length", b"")
        size = int(declared) if declared.isdigit() and len(declared) <= _LONGEST_NUMBER else 0
        chunks: list[bytes] = []
        arrived = 0
        while size <= limit:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            chunks.append(message["body"])
            arrived += len(message["body"])
            size = arrived
            self.held.grow(size)
            if not message.get("more_body"):
                self.is_whole = True
                break
        self.content = b"".join(chunks)
        return self.content

    def replace(self, content: bytes) -> None:
        """Give the application this in its place.

        Raises:
            Overloaded: there are too many large bodies.
        """
        self.held.grow(len(content))
        self.content = content

    async def receive(self) -> HTTPReceiveMessage | WebSocketReceiveMessage:
        """Return what the application receives next."""
        if self._is_given:
            return await self._receive()
        self._is_given = True
        return HTTPRequestEvent(type="http.request", body=self.content, more_body=not self.is_whole)

    @property
    def compared(self) -> bytes:
        """What tells the request from others; the head of a long one of no declared length."""
        return self.content[: self.runtime.document.request.max_body_bytes]
