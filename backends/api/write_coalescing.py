"""Coalesces the writes of one event-loop iteration of a connection into one packet.

uvicorn writes a response's head and its body apart: two system calls, and a client woken twice.
"""

import asyncio
import select
from typing import Any

from typing_extensions import override

from backends.api.asgi import CLIENT_EXTENSION, Client
from backends.api.bounded import LimitedHttpProtocol


class WriteCoalescingTransport(asyncio.Transport):
    """Gathers what is written until the event-loop iteration ends."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    @override
    def write(self, data: Any) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_now(self, data: bytes) -> None:
        """Write what no more will follow soon."""
        if self._parts:
            self._parts.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    @override
    def close(self) -> None:
        self._flush()
        self._transport.close()

    @override
    def abort(self) -> None:
        self._transport.abort()

    @override
    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    @override
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    @override
    def pause_reading(self) -> None:
        self._transport.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))


class WriteCoalescingProtocol(LimitedHttpProtocol):
    """Coalesces writes, and reports a client that disconnects.

    With ASGI's `receive` a task would wait for that: a third of the tasks' cost of a small call.
    """

    _is_used = False
    _has_begun = False
    _unsent_bytes = 0
    _unsent_since = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Of a connection without TLS there is none; an unverified one ended the handshake.
        self.client_state = Client(is_certified=bool(transport.get_extra_info("peercert")))
        self._coalescing = WriteCoalescingTransport(transport, self.loop)
        super().connection_made(self._coalescing)

    def end_if_idle(self) -> None:
        """End the connection if it has been used, and nothing that was sent on it is unanswered."""
        descriptor: int = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0 or not self._is_used or self._has_begun:
            return
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(0):
            self.shutdown()

    @override
    def end_if_late(self, now: float) -> None:
        unsent = self._coalescing.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._waits.unread:
            self._coalescing.abort()
        super().end_if_late(now)

    @override
    def on_headers_complete(self) -> None:
        self._is_used, self._has_begun = True, False
        super().on_headers_complete()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True
        # ASGI's own extensions are all dictionaries.
        self.scope["extensions"] = {CLIENT_EXTENSION: self.client_state}  # type: ignore[dict-item]

    @override
    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.pipeline:
            # Reading was paused for a large body; who does not read misses that the client leaves.
            self.flow.resume_reading()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.client_state.leave()
        super().connection_lost(exc)
