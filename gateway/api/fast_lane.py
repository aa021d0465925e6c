"""The fast lane: requests that need not wait for anybody are answered as their bytes arrive.

No task, no ASGI messages: a whole request in, a whole answer out, by the same rules as the
application's. What is of another kind goes on to the application, its bytes untouched; what must
wait for Redis or a backend goes on with what was decided so far.
"""

from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.api.answers import HIT, PRIVATE
from gateway.api.exchange import Exchange, RequestIds
from gateway.api.http import Reply
from gateway.api.inference import BEGUN
from gateway.api.known_heads import KnownHead, KnownHeads, KnownRequest
from gateway.api.rules import InferenceRules, Limiter
from gateway.api.turn import Turn
from gateway.corked import Cork, CorkedProtocol
from gateway.inference import Inference
from gateway.runtime.store import RuntimeStore

_END = b"\r\n\r\n"
# So much is answered before looking whether the peer still reads.
_MOST_AT_ONCE = 64 * 1024


class FastLane:
    """What the connections of a worker share."""

    def __init__(
        self,
        *,
        rules: InferenceRules,
        heads: KnownHeads,
        limiter: Limiter,
        inference: Inference,
        runtimes: RuntimeStore,
        ids: RequestIds,
        turn: Turn,
    ) -> None:
        self.heads = heads
        self.cork = Cork(before=turn.commit)
        self.turn = turn
        self._rules = rules
        self._limiter = limiter
        self._inference = inference
        self._runtimes = runtimes
        self._id_prefix = ids.prefix.encode()
        self._server_headers: list[tuple[bytes, bytes]] = []
        self._server_lines = b""
        self._hit_lines = b""

    def again(self, request: bytes, server_headers: list[tuple[bytes, bytes]]) -> bytes | None:
        """Return the answer to a whole request that is the same as an earlier memory hit.

        `None`, and nothing decided, where it is not known as such or may end in another way now.
        """
        known = self.heads.recall(request)
        if known is None:
            return None
        repeat, job = known.reading.repeat, known.reading.job
        if repeat is None or job is None:
            return None
        entry, age = self._inference.recall(job, self._runtimes.current)
        if entry is not repeat.entry:
            return None
        run = repeat.run
        if run.count == run.room and not self.turn.join(run):
            return None
        limits = known.spender.spend()
        if limits is None:
            self.turn.commit()  # the run may have been joined for nothing
            return None
        if server_headers is not self._server_headers:
            self._prepare(server_headers)
        return b"%b%d\r\nx-request-id: %b%010x%b%b%b" % (
            self._hit_lines,
            age,
            self._id_prefix,
            run.add(),
            PRIVATE,
            limits,
            repeat.tail,
        )

    def reply(self, head: KnownHead, body: bytes, *, request: bytes) -> Reply | Exchange:
        """Return the answer to a request, or the exchange where it has to be waited for.

        `request` is head and body: a plain memory hit is known by it from now on.
        """
        exchange = self._rules.exchange(head.task)
        exchange.principal = head.principal
        exchange.asked = head.asked
        exchange.wants_timing = head.wants_timing
        exchange.traceparent = head.traceparent
        exchange.body_is_read()
        reply = self._rules.reply_now(exchange, "", body)
        reading = exchange.reading
        if (
            reading is not None
            and reading.repeat is not None
            and head.is_plain
            # A limit that is only tried out counts what it would have refused, on the longer way.
            and not any(charge.rule.shadow for charge in reading.charges)
        ):
            spender = self._limiter.spender(reading.charges)
            self.heads.remember(request, KnownRequest(reading=reading, spender=spender))
        return reply or exchange

    def render(self, reply: Reply, server_headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the bytes of an answer; `server_headers` (the date) come first, as uvicorn's."""
        if server_headers is not self._server_headers:
            self._prepare(server_headers)
        return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
            STATUS_LINE[reply.status],
            self._server_lines,
            reply.lines,
            len(reply.body),
            reply.body,
        )

    def _prepare(self, server_headers: list[tuple[bytes, bytes]]) -> None:
        """Make what answers begin with; the date in it is another each second."""
        self._server_headers = server_headers
        self._server_lines = b"".join([b"%b: %b\r\n" % header for header in server_headers])
        self._hit_lines = STATUS_LINE[200] + self._server_lines + HIT


class FastLaneProtocol(CorkedProtocol):
    """uvicorn's protocol with a fast lane before it.

    The lane is open between two requests when nothing of the application's is under way, so that
    answers keep their order. While the peer does not read, nothing is answered and nothing read.
    """

    def __init__(self, *args: Any, lane: FastLane, **kwargs: Any) -> None:
        super().__init__(*args, cork=lane.cork, **kwargs)
        self._lane = lane
        self._is_between = True
        self._held = b""

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_between and (self.cycle is None or self.cycle.response_complete):
            if self.flow.write_paused:
                data = self._hold(data)
            else:
                answer = self._lane.again(data, self.server_state.default_headers)
                if answer is not None:
                    # As `_send`, by the turn's clock.
                    self.transport.write(answer)
                    self.server_state.total_requests += 1
                    self._answered_at = self._lane.turn.started
                    if self.timeout_keep_alive_task is None:
                        self._wait_for_requests(self.timeout_keep_alive)
                    return
                data = self._answer(data)
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
            reply = lane.reply(head, data[end:stop], request=data[start:stop])
            if isinstance(reply, Exchange):
                self._send(b"".join(answers), len(answers))
                self._hand_over(data[start:stop], reply)
                return data[stop:]
            answers.append(lane.render(reply, self.server_state.default_headers))
            start = stop
            size += len(answers[-1])
            if size > _MOST_AT_ONCE:
                self._send(b"".join(answers), len(answers))
                lane.cork.release()
                answers, size = [], 0
                if self.flow.write_paused:
                    break
        self._send(b"".join(answers), len(answers))
        rest = data[start:] if start else data
        return self._hold(rest) if rest and self.flow.write_paused else rest

    def _hold(self, data: bytes) -> bytes:
        """Keep `data` until the peer reads, and read no more meanwhile: no more than one read."""
        self._held += data
        self.flow.pause_reading()
        return b""

    def _send(self, answers: bytes, count: int) -> None:
        if not count:
            return
        self.transport.write(answers)
        self.server_state.total_requests += count
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
