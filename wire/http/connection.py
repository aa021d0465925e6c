"""Reads the requests of one connection, has each answered in order, and ends the connection.

At most one request is under way. Bytes behind it are held, and reading then pauses.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from typing_extensions import override

from sluicegate.wire.http.exchange import Exchange
from sluicegate.wire.http.messages import App, Headers, Scope
from sluicegate.wire.http.peers import Peer, too_many_connections
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.request_parser import CHUNK_BYTES, RequestHead, RequestParser
from sluicegate.wire.http.slow_readers import ReadingPeer, ReadProgress
from sluicegate.wire.http.timeouts import (
    ConnectionTimeouts,
    StallWatch,
    confirmed_by_peer,
    has_unread,
)
from sluicegate.wire.http.writing import AnswerWriter, WriteCoalescer

HAS_CERTIFICATE: Final = "has_certificate"
"""The key in a request's state that says that the client has shown an accepted certificate."""
# The bound on bytes that are read and dropped: the rest of a body whose request is answered, and
# bytes after a refusal. Most clients read no answer before they have sent everything, and a reset
# before that would lose the answer.
_MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
# Seconds between the last answer and the close: closing at once while the peer still sends would
# reset the connection, and the peer would lose the answer.
_LINGER: Final = 1.0
# Connections above the limit that are told so at a time; more are aborted without an answer.
_MAX_REJECTED: Final = 256
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class Cancellable(Protocol):
    """Answers a request, and can be given up: a task, for example."""

    def cancel(self, msg: Any = None) -> object:
        """End it soon."""
        ...


class Front:
    """Answers requests of one connection by their bytes, before the parser sees them.

    It is asked while no request is under way and the peer reads. By default it answers none.
    """

    def take(self, data: bytes) -> bytes:
        """Answer requests of `data`, and return the rest for the parser.

        To answer later, set the connection's `answering`, call its `hold` with what is behind the
        request, and `end_answer` at the end.
        """
        return data

    def learn(self, data: bytes, exchange: Exchange, headers: Headers) -> None:
        """Note that the parser made `exchange` of `data`, the bytes that `take` returned."""


class Side(Protocol):
    """The parts of a server that gateway and backend each define, beside the application."""

    coalescer: WriteCoalescer
    answers_half_closed: bool
    """Whether a client that sends no more is answered. Otherwise it counts as one that has left."""

    def refusal(self, refusal: Refusal, default_lines: bytes) -> bytes:
        """Return the whole answer that refuses a request; it ends the connection."""
        ...

    def front(self, connection: "Connection") -> Front | None:
        """Return what answers requests of a connection before they are parsed."""
        ...


class ServerState:
    """Holds what the connections of a server share."""

    def __init__(
        self,
        app: App,
        side: Side,
        timeouts: ConnectionTimeouts,
        *,
        on_large_write: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.app = app
        self.side = side
        self.timeouts = timeouts
        self.on_large_write = on_large_write
        self.connections: set[Connection] = set()
        self.rejected: set[Connection] = set()
        """Connections above the limit, until each is told so."""
        self.tasks: set[Cancellable] = set()
        """What answers requests."""
        self.default_lines = b""
        """The header lines that come first in every answer."""
        self.closes_connections = False
        """Whether every answer is the last of its connection."""

    def close_connections(self) -> None:
        """Have every answer that begins be the last of its connection."""
        self.closes_connections = True


class Connection(asyncio.Protocol):
    """One connection of a server."""

    writer: AnswerWriter

    def __init__(self, state: ServerState, peer: Peer | None = None) -> None:
        self.state = state
        self.peer = peer or Peer()
        self.loop = asyncio.get_running_loop()
        self.answering: object | None = None
        """The request under way: an `Exchange`, or the front's own object."""
        self.on_leave: Callable[[], object] | None = None
        """Is called if the client disconnects before the request under way is answered."""
        self.gives_up_at = math.inf
        """When the connection is aborted, whatever is under way."""
        self.answers = 0
        """The number of answers. A front counts those that it gives at once."""
        self.is_ending = False
        """Whether the connection ends once everything that was read is answered."""
        self._queue = deque[Exchange]()
        """The requests that were parsed in one chunk with the request under way."""
        self._held = b""
        """What came behind the request under way, and is not parsed."""
        self._receiving: Exchange | None = None
        """The request whose body arrives."""
        self._is_reading, self._is_at_eof = True, False
        self._is_over = False
        """Whether what still comes is dropped, because the parser cannot read it."""
        self._refusal: Refusal | None = None
        self._discarded_bytes = 0
        self._parser = RequestParser(
            on_head=self._on_head,
            on_body=self._on_body,
            on_end=self._on_end,
            clock=self.loop.time,
        )
        self._front = Front()
        self._take = self._front.take
        self._progress: ReadProgress | None = None
        self._waiting_since = self.loop.time()
        self._answers_seen = self._answers_parsed = 0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        state = self.state
        self.writer = AnswerWriter(transport, state.side.coalescer, self._on_large_write)
        self._stalls = StallWatch(transport, state.timeouts)
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self.peer.is_connected = True
        if self.peer.refusal is not None:
            self._reject(self.peer.refusal)
            return
        if len(state.connections) >= state.timeouts.connections:
            self._reject(too_many_connections())
            return
        # Without TLS there is no certificate; an unverified one ended the handshake.
        self._has_certificate = bool(transport.get_extra_info("peercert"))
        self._server_address = _address(transport.get_extra_info("sockname"))
        address = self.peer.address
        self._address = (address, 0) if address else _address(transport.get_extra_info("peername"))
        state.connections.add(self)
        self._front = state.side.front(self) or self._front
        self._take = self._front.take

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.state.connections.discard(self)
        self.state.rejected.discard(self)
        self.peer.close()
        if self.on_leave is not None:
            self.on_leave()
        self.writer.lose()
        # These refer to the connection, which would be left to the garbage collector.
        self._parser.close()
        self._front = Front()
        self._take = self._front.take
        self.answering = self.on_leave = self._receiving = None
        self._queue.clear()
        self._held = b""

    @override
    def data_received(self, data: bytes) -> None:
        if not (self.answering or self._held or self.writer.is_paused) and self._parser.is_between:
            data = self._take(data)
            if data:
                self._parse_first(data)
            if self.is_ending and not self._parser.is_in_head:
                self._end_if_done()
        elif self._refusal is not None or self._is_over or self.writer.is_closing():
            self._discard(len(data))
        elif self._held or self._is_blocked:
            self.hold(data)
        else:
            self._parse(data)

    @override
    def eof_received(self) -> bool:
        """Answer the requests that the client sent in full before it half-closed, then close.

        Over TLS the event loop closes the connection at once.
        """
        if not self.state.side.answers_half_closed:
            return False
        if self.writer.has_ended:
            self.writer.close()
        else:
            self._is_at_eof = self.is_ending = True
            self._end_if_done()
        return self._scheme == "http"

    @override
    def pause_writing(self) -> None:
        self.writer.pause()

    @override
    def resume_writing(self) -> None:
        self.writer.resume()
        if self._held:
            self.loop.call_soon(self._go_on)

    @property
    def default_lines(self) -> bytes:
        """The header lines that come first in every answer."""
        return self.state.default_lines

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with an answer that begins now."""
        is_ending = self.is_ending or self.state.closes_connections
        return is_ending and not (self._queue or self._held or self._refusal)

    def hold(self, data: bytes) -> None:
        """Keep what came behind the request under way, and read no more until it is answered."""
        if data:
            self._held += data
            self.pause_reading()

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""
        if self._is_reading and not self.writer.transport.is_closing():
            self._is_reading = False
            self.writer.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read what the client sends, unless something is held or the connection ends."""
        is_kept = self._is_reading or self._held or self._reads_no_more
        if not is_kept and not self.writer.transport.is_closing():
            self._is_reading = True
            self.writer.transport.resume_reading()

    def begin_whole(self, scope: Scope, body: bytes) -> Exchange:
        """Return the request under way, which a front has read; `run` it, or answer it at once."""
        exchange = Exchange(self, scope, body=body)
        self.answering, self.on_leave = exchange, exchange.disconnect
        return exchange

    def run(self, exchange: Exchange) -> None:
        """Have the application answer the request under way."""
        self._waiting_since = self.loop.time()
        tasks = self.state.tasks
        task = self.loop.create_task(exchange.run(self.state.app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def end_answer(self, *, is_last: bool) -> None:
        """Note that the request under way is answered, and begin with what is behind it."""
        if self._receiving is not None and self._receiving is self.answering:
            self._parser.discarded_bytes = 0
        self.answering = self.on_leave = None
        self.gives_up_at = math.inf
        self.answers += 1
        if self.peer.is_proxy:
            self.peer.end_request()
        if is_last:
            self.close()
            return
        if self._queue:
            self._start(self._queue.popleft())
        if self._held:
            # Not from here: a failure in the next request must not fail the one just answered.
            self.loop.call_soon(self._go_on)
        elif self.answering is None:
            self.resume_reading()
            if self.is_ending or self._refusal is not None:
                self._end_if_done()

    def refuse(self, refusal: Refusal) -> None:
        """Read no more, and end with this refusal once everything before it is answered."""
        self._refusal = refusal
        self._parser.is_between = False
        self._held = b""
        self._abandon()
        if self._is_under_way:
            self.pause_reading()
        else:
            self._end_if_done()

    def close(self) -> None:
        """Close the connection once everything is sent. Read what still comes for a while."""
        if self._is_at_eof or self.writer.is_closing():
            self.writer.close()
        elif self._receiving is not None or self._held or has_unread(self.writer.transport):
            self._linger()
        else:
            self.writer.close()

    def shutdown(self) -> None:
        """Close the connection once everything that was read is answered."""
        self.is_ending = True
        if self._is_under_way:
            if self._reads_no_more:
                self.pause_reading()
        elif self._receiving is not None or not (
            self._parser.is_in_head or has_unread(self.writer.transport)
        ):
            self.close()

    def close_if_idle(self, *, is_last_call: bool) -> None:
        """Close the connection once every request on it is answered.

        A connection without any request yet is kept until `is_last_call`.
        """
        if self._parser.is_in_head or has_unread(self.writer.transport):
            return
        if self.answers or self._is_under_way or is_last_call:
            self.shutdown()

    def check(self, now: float) -> None:
        """End the connection if it has exceeded a time-out; call it about once a second."""
        if self._stalls.has_stalled(now, self.writer.unsent_bytes()) or now > self.gives_up_at:
            self.give_up()
        elif self._refusal is None and not self.writer.is_closing():
            self._end_if_late(now)

    def reader(self, now: float) -> ReadingPeer | None:
        """Return a peer with unread bytes in this process, else `None`.

        Call it about once a second: the rate is measured between the calls.
        """
        transport, unsent = self.writer.transport, self.writer.unsent_bytes()
        if not unsent or transport.get_extra_info("socket") is None:
            self._progress = None
            return None
        progress = self._measure(now)
        return progress.observe(now, confirmed_by_peer(transport), unsent, self.writer.holder)

    def own_unsent_bytes(self) -> int:
        """Return the unsent bytes that no budget counts."""
        return self.writer.unsent_bytes() if self.writer.holder is None else 0

    def give_up(self) -> None:
        """End the connection at once; unsent bytes are lost."""
        self.writer.transport.abort()

    @property
    def _is_under_way(self) -> bool:
        return self.answering is not None or bool(self._queue or self._held)

    @property
    def _is_blocked(self) -> bool:
        """Whether new bytes have to wait for an answer, or until the peer reads."""
        is_busy = self.answering is not None or self.writer.is_paused
        return bool(self._queue) or (is_busy and self._parser.is_between)

    @property
    def _reads_no_more(self) -> bool:
        return self.is_ending and self._parser.is_between and self.state.side.answers_half_closed

    def _on_head(self, head: RequestHead) -> None:
        peer = self.peer
        address = (peer.begin_request(head.headers), 0) if peer.is_proxy else self._address
        self._waiting_since = self.loop.time()
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "server": self._server_address,
            "client": address,
            "scheme": self._scheme,
            "root_path": "",
            "headers": head.headers,
            "state": {HAS_CERTIFICATE: True} if self._has_certificate else {},
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
        }
        self._receiving = exchange = Exchange(
            self,
            scope,
            keeps_alive=head.keeps_alive,
            expects_continue=head.expects_continue,
        )
        if self.answering is None:
            self._start(exchange)
        else:
            self._queue.append(exchange)
            self.pause_reading()

    def _on_body(self, data: bytes) -> None:
        if self._receiving is not None:
            self._receiving.add_body(data)

    def _on_end(self, is_over: bool) -> None:  # noqa: FBT001
        exchange, self._receiving = self._receiving, None
        if is_over:
            self.is_ending = self._is_over = True
        if exchange is not None:
            exchange.end_body()
        if self.is_ending and (is_over or not self._is_under_way):
            self.resume_reading()
            self._end_if_done()
        elif self._reads_no_more:
            self.pause_reading()
        elif not self._queue:
            # Reading may be paused for a large body: only reading tells that the client leaves.
            self.resume_reading()

    def _start(self, exchange: Exchange) -> None:
        self.answering, self.on_leave = exchange, exchange.disconnect
        self.run(exchange)

    def _parse_first(self, data: bytes) -> None:
        """Parse `data`, which begins a request while none is under way."""
        if self.answers != self._answers_parsed:
            self._answers_parsed = self.answers
            self._parser.forget_empty_lines()
        self._parse(data)
        exchange = self.answering
        if isinstance(exchange, Exchange) and not self._queue:
            self._front.learn(data, exchange, self._parser.headers)

    def _parse(self, data: bytes) -> None:
        """Parse `data`, and hold the rest once it has to wait."""
        parser, rest = self._parser, memoryview(data)
        try:
            while rest and not (self._is_over or self.writer.is_closing()):
                if self._is_blocked:
                    self.hold(bytes(rest))
                    return
                parser.feed(rest[:CHUNK_BYTES])
                rest = rest[CHUNK_BYTES:]
        except Refusal as refusal:
            self.refuse(refusal)
        if (parser.discarded_bytes or 0) > _MAX_DISCARDED_BYTES:
            self.give_up()

    def _go_on(self) -> None:
        """Go on with what was held."""
        if self._is_blocked or not self._held or self.writer.is_closing():
            return
        data, self._held = self._held, b""
        self.resume_reading()
        try:
            self.data_received(data)
        except BaseException:  # whatever it was, nobody must wait for what will not come
            self.give_up()
            raise
        self._end_if_done()

    def _end_if_done(self) -> None:
        """End the connection if nothing more is to be answered or read."""
        if self._is_at_eof and not self._held:
            self._abandon()
        if self._is_under_way or self.writer.is_closing():
            return
        if self._refusal is not None:
            self.writer.write(self.state.side.refusal(self._refusal, self.default_lines))
            self._linger()
        elif self.is_ending:
            self.close()

    def _abandon(self) -> None:
        """Give up the request whose body will not be read to its end, if there is one."""
        exchange, self._receiving = self._receiving, None
        if exchange is None or exchange.is_complete:
            return
        if exchange is self.answering:
            self.answering = self.on_leave = None
            if exchange.has_begun:
                self.writer.close()
        else:
            self._queue.remove(exchange)
        exchange.disconnect()

    def _linger(self) -> None:
        """Send no more, and close when the peer closes, or after a while."""
        self._parser.is_between = False
        self._held = b""
        self.writer.end()
        self.resume_reading()
        self.loop.call_later(_LINGER, self.writer.close)

    def _reject(self, refusal: Refusal) -> None:
        if len(self.state.rejected) >= _MAX_REJECTED:
            self.give_up()
            return
        self.state.rejected.add(self)
        self.refuse(refusal)

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > _MAX_DISCARDED_BYTES:
            self.pause_reading()

    def _end_if_late(self, now: float) -> None:
        timeouts, waited = self.state.timeouts, now - self._waiting_since
        is_awaited = self._receiving is not None and not self._queue
        if is_awaited and waited > timeouts.body:
            self.give_up()
        elif self._is_under_way:
            return
        elif self._parser.is_in_head:
            if now - self._parser.began > timeouts.head:
                self.refuse(Refusal(408, "The head of the request did not arrive in time."))
        elif self.answers != self._answers_seen:
            # Between two calls, so that no answer has to ask for the time.
            self._answers_seen, self._waiting_since = self.answers, now
        elif waited > (timeouts.idle if self.answers else timeouts.until_first):
            self.close()

    def _measure(self, now: float) -> ReadProgress:
        """Begin to measure how fast the peer reads, unless that has begun."""
        if self._progress is None:
            self._progress = ReadProgress(now, confirmed_by_peer(self.writer.transport))
        return self._progress

    def _on_large_write(self, size: int) -> None:
        self._measure(self.loop.time())
        self.state.on_large_write(size)


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
