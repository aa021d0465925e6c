"""Coalesces the writes of one event-loop iteration into one packet a connection.

uvicorn writes a response's head and its body apart: two system calls, and a client woken twice.
"""

import asyncio
import weakref
from collections.abc import Callable, Hashable
from typing import Any, cast

from typing_extensions import override

from gateway.http.connection_timeouts import TimedProtocol
from gateway.http.server_internals import STATUS_LINE, FlowControl, RequestResponseCycle
from gateway.http.unsent_answers import LARGE_BYTES, WATCHED_BYTES

BUFFERED_HTTP = "sluicegate.buffered_http"
"""Names the ASGI extension `BufferedHttpExtension`."""

CLOSE = b"connection: close\r\n"
# For so long the peer may still send, and read the answer: closing at once would reset the
# connection, and the answer would be lost with it.
_LINGER = 1.0
# A transport with more unsent bytes than this pauses its writer.
_PIECE_BYTES = 256 * 1024


class WriteCoalescer:
    """Holds back the writes of connections until the event-loop iteration ends.

    It calls `before` first, so that the steps that must precede an answer are done.
    """

    def __init__(self, *, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self.held: list[WriteCoalescingTransport] = []
        """Those that have something to write; `release` is to be called soon after the first."""

    def release(self) -> None:
        """Write everything. If `before` fails, end the connections."""
        held, self.held = self.held, []
        try:
            self._before()
        except BaseException:  # whatever it was, nobody must wait for what will not come
            for transport in held:
                transport.abort()
            raise
        for transport in held:
            transport.flush()


class WriteCoalescingTransport(asyncio.Transport):
    """A transport that gathers written bytes until `coalescer` releases them."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        coalescer: WriteCoalescer,
        on_large_write: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._coalescer = coalescer
        self._on_large_write = on_large_write
        self._parts: list[bytes] = []
        self._has_ended = False
        self.is_body_due = False
        """Whether the peer is sending a body: what comes of it is read for a while at the end."""
        self.unwritten_bytes = 0
        """The rest of an answer that is sent in pieces."""
        self.holder: Hashable = None
        """The key that holds bytes for that answer."""

    @override
    def write(self, data: Any) -> None:
        if not self._parts:
            held = self._coalescer.held
            if not held:
                self._loop.call_soon(self._coalescer.release)
            held.append(self)
        self._parts.append(data)
        if len(data) > WATCHED_BYTES:
            self._on_large_write(len(data))

    async def write_in_pieces(
        self, head: bytes, body: bytes, flow: FlowControl, holder: Hashable
    ) -> None:
        """Write a large answer, each piece once the peer has read most of what came before.

        `holder` is the key that holds bytes of the budget for it.
        """
        self.write(head)
        self._coalescer.release()
        left = memoryview(body)
        self.holder = holder
        try:
            while left and not self.is_closing():
                piece, left = left[:_PIECE_BYTES], left[_PIECE_BYTES:]
                self.unwritten_bytes = len(left)
                self._transport.write(piece)
                if flow.write_paused:
                    await flow.drain()
                else:
                    await asyncio.sleep(0)  # give other tasks a turn
        finally:
            self.unwritten_bytes = 0
            self.holder = None

    @override
    def close(self) -> None:
        if self.is_body_due and not self.is_closing():
            self.linger()
            return
        if self._parts:
            self._coalescer.release()
        # A transport of TLS that is closed once more than it was open knows nothing any more.
        if not self._transport.is_closing():
            self._transport.close()

    def linger(self) -> None:
        """Write no more, and close at the next `close`, or after a while."""
        self.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(_LINGER, self.close)

    @override
    def abort(self) -> None:
        self._transport.abort()

    @override
    def write_eof(self) -> None:
        if self._parts:
            self._coalescer.release()
        self._has_ended = True
        # TLS has no half-closed connections: there the length of the answer says where it ends.
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def get_write_buffer_size(self) -> int:
        gathered = sum(map(len, self._parts))
        return self._transport.get_write_buffer_size() + gathered + self.unwritten_bytes

    @override
    def is_closing(self) -> bool:
        return self._has_ended or self._transport.is_closing()

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    @override
    def pause_reading(self) -> None:
        self._transport.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def flush(self) -> None:
        """Write what was gathered; called by the coalescer.

        A request that was given up may say something after the end: that is discarded, since a
        transport that raises would keep the coalescer from writing what other connections have.
        """
        parts, self._parts = self._parts, []
        if parts and not self._has_ended and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))


class WriteCoalescingProtocol(TimedProtocol):
    """A protocol over a coalescing transport, with the ASGI extension `BUFFERED_HTTP`."""

    _last_cycle: RequestResponseCycle | None = None

    def __init__(self, *args: Any, coalescer: WriteCoalescer | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._coalescer = coalescer or WriteCoalescer()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._coalescing_transport = WriteCoalescingTransport(
            transport, self.loop, self._coalescer, self._on_large_write
        )
        super().connection_made(self._coalescing_transport)

    @override
    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        self._coalescing_transport.is_body_due = True
        if self._draining.closes_connections:
            self._make_last(before)
        self.scope["extensions"] = {BUFFERED_HTTP: BufferedHttpExtension(self.cycle)}  # type: ignore[dict-item]

    @override
    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._coalescing_transport.is_body_due = self._is_in_body

    @override
    def eof_received(self) -> bool:  # type: ignore[override]  # see `StrictHttpProtocol`
        self._coalescing_transport.is_body_due = False
        return super().eof_received()

    @override
    def own_unsent_bytes(self) -> int:
        return 0 if self._holder() is not None else super().own_unsent_bytes()

    @override
    def _holder(self) -> Hashable:
        return self._coalescing_transport.holder

    def _on_large_write(self, size: int) -> None:
        self.begin_progress(self.loop.time())
        self._unsent.wrote(size)

    def _make_last(self, before: RequestResponseCycle | None) -> None:
        """Have the connection end with the answer to this request, not to one sent before it."""
        if before is not None and before is self._last_cycle and not before.response_started:
            before.keep_alive = True
        if self.cycle.keep_alive:
            self.cycle.keep_alive = False
            self._last_cycle = self.cycle


class BufferedHttpExtension:
    """The ASGI extension `BUFFERED_HTTP`: a request's body and its answer, each in one piece.

    What the messages of ASGI would do in several steps, which cost a fifth of a cache hit more.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        # The cycle has the scope, which has this: held strongly, each request would be left to the
        # collection of garbage, whose runs of 10 ms every other request would see.
        self._cycle = weakref.ref(cycle)

    def body(self) -> bytes | None:
        """Return the body as `receive` would, `None` where it has to be waited for."""
        cycle = self._cycle()
        if cycle is None or cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    async def send(self, status: int, lines: bytes, body: bytes, holder: Hashable = None) -> None:
        """Send an answer as two messages to `send` would, a large one in pieces.

        `lines` are its headers but for its length, each in lower case and ended by CRLF. `CLOSE`
        may be among them, no other `connection`. `holder` is the key that holds bytes of the budget
        for the answer.
        """
        cycle = self._cycle()
        if cycle is None:
            return  # the server has given the request up
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        head = _begin(cycle, status, lines, len(body))
        if cycle.scope["method"] == "HEAD":
            cycle.transport.write(head)
        elif len(body) <= LARGE_BYTES:
            cycle.transport.write(head + body)
        else:
            transport = cast("WriteCoalescingTransport", cycle.transport)
            await transport.write_in_pieces(head, body, cycle.flow, holder)
            if transport.is_closing():
                return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


def _begin(cycle: RequestResponseCycle, status: int, lines: bytes, length: int) -> bytes:
    """Return the head of an answer that is written now."""
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    close = b"" if cycle.keep_alive else CLOSE
    if CLOSE in lines:
        cycle.keep_alive, close = False, b""
    return b"%b%b%bcontent-length: %d\r\n%b\r\n" % (
        STATUS_LINE[status],
        b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers]),
        lines,
        length,
        close,
    )
