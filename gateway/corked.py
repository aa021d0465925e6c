"""An HTTP protocol that sends what one tick writes in one packet.

uvicorn writes a response's head and its body apart: two system calls, and a client woken twice.
"""

import asyncio
from typing import Any

from typing_extensions import override

from gateway.patience import PatientProtocol


class CorkedTransport(asyncio.Transport):
    """A transport that gathers what is written until the tick ends."""

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

    @override
    def close(self) -> None:
        self._flush()
        self._transport.close()

    @override
    def abort(self) -> None:
        self._transport.abort()

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


class CorkedProtocol(PatientProtocol):
    """uvicorn's protocol over a corked transport, whose refusals wait for their turn.

    uvicorn refuses what is no HTTP at once, and closes: requests sent before it went unanswered.
    """

    _refusal = ""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport, self.loop))

    @override
    def send_400_response(self, msg: str) -> None:
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            super().send_400_response(msg)
        else:
            self._refusal = msg
            self.flow.pause_reading()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal and self.cycle.response_complete and not self.transport.is_closing():
            super().send_400_response(self._refusal)
