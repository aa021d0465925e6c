"""The fast lane: requests that need not wait for anybody are answered as their bytes arrive.

No task, no ASGI messages: a whole request in, a whole answer out, by the same rules as the
application's. What is of another kind goes on to the application, its bytes untouched; what must
wait for Redis or a backend goes on with what was decided so far.
"""

from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.api.exchange import Exchange
from gateway.api.http import Reply
from gateway.api.inference import BEGUN
from gateway.api.known_heads import KnownHead, KnownHeads
from gateway.api.rules import InferenceRules
from gateway.corked import CorkedProtocol

_END = b"\r\n\r\n"
# So much is answered before looking whether the peer still reads.
_MOST_AT_ONCE = 64 * 1024


class FastLane:
    """What the connections of a worker share."""

    def __init__(self, *, rules: InferenceRules, heads: KnownHeads) -> None:
        self.heads = heads
        self._rules = rules
        self._server_headers: list[tuple[bytes, bytes]] = []
        self._server_lines = b""

    def reply(self, head: KnownHead, body: bytes) -> Reply | Exchange:
        """Return the answer to a request, or the exchange where it has to be waited for."""
        exchange = self._rules.exchange(head.task)
        exchange.principal = head.principal
        exchange.asked = head.asked
        exchange.wants_timing = head.wants_timing
        exchange.traceparent = head.traceparent
        exchange.body_is_read()
        return self._rules.reply_now(exchange, "", body) or exchange

    def render(self, reply: Reply, server_headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the bytes of an answer; `server_headers` (the date) come first, as uvicorn's."""
        if server_headers is not self._server_headers:
            self._server_headers = server_headers
            self._server_lines = b"".join([b"%b: %b\r\n" % header for header in server_headers])
        return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
            STATUS_LINE[reply.status],
            self._server_lines,
            reply.lines,
            len(reply.body),
            reply.body,
        )


class FastLaneProtocol(CorkedProtocol):
    """uvicorn's protocol with a fast lane before it.

    The lane is open between two requests when nothing of the application's is under way, so that
    answers keep their order. While the peer does not read, nothing is answered and nothing read.
    """

    def __init__(self, *args: Any, lane: FastLane, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lane = lane
        self._is_between = True
        self._held = b""

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_between and (self.cycle is None or self.cycle.response_complete):
            data = self._hold(data) if self.flow.write_paused else self._answer(data)
        if data:
            super().data_received(data)

    @override
    def on_message_begin(self) -> None:
        self._is_between = False
        super().on_message_begin()

    @override
    def on_message_complete(self) -> None:
        # After an upgrade what follows is not HTTP.
        self._is_between = not self.parser.should_upgrade()
        super().on_message_complete()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held:
            self.loop.call_soon(self._go_on)

    @override
    def timeout_keep_alive_handler(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0 and not self.transport.is_closing():
            self._wait_for_requests(left)
        else:
            super().timeout_keep_alive_handler()

    def _answer(self, data: bytes) -> bytes:
        """Answer what can be answered, and return what is left for the application."""
        lane, start, size = self._lane, 0, 0
        answers: list[bytes] = []
        while (end := data.find(_END, start) + 4) > 3:  # noqa: PLR2004 - found
            head = lane.heads.find(data[start:end])
            if head is None or end + head.length > len(data):
                break
            stop = end + head.length
            reply = lane.reply(head, data[end:stop])
            if isinstance(reply, Exchange):
                self._send(answers)
                self._hand_over(data[start:stop], reply)
                return data[stop:]
            answers.append(lane.render(reply, self.server_state.default_headers))
            start = stop
            size += len(answers[-1])
            if size > _MOST_AT_ONCE:
                self._send(answers)
                answers, size = [], 0
                if self.flow.write_paused:
                    break
        self._send(answers)
        rest = data[start:] if start else data
        return self._hold(rest) if rest and self.flow.write_paused else rest

    def _hold(self, data: bytes) -> bytes:
        """Keep `data` until the peer reads, and read no more meanwhile: no more than one read."""
        self._held += data
        self.flow.pause_reading()
        return b""

    def _send(self, answers: list[bytes]) -> None:
        if not answers:
            return
        self.transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        self.server_state.total_requests += len(answers)
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._wait_for_requests(self.timeout_keep_alive)

    def _hand_over(self, request: bytes, exchange: Exchange) -> None:
        """Let the application end what the lane began."""
        super().data_received(request)
        self.scope[BEGUN] = exchange  # type: ignore[literal-required]  # an entry of our own

    def _go_on(self) -> None:
        """Answer what was held back while the peer did not read."""
        if self.flow.write_paused or self.transport.is_closing():
            return
        data, self._held = self._held, b""
        self.flow.resume_reading()
        if data:
            self.data_received(data)

    def _wait_for_requests(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )
