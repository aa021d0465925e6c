"""Answers plain requests of a connection as their bytes arrive.

Requests of another kind are left to the server and the application.
"""

import math
from collections.abc import Sequence

from typing_extensions import override

from sluicegate.gateway.api.answers import HIT
from sluicegate.gateway.api.core import Core
from sluicegate.gateway.api.fast_path.head_cache import (
    CachedHead,
    FoundHead,
    RepeatedRequest,
    RequestHeadCache,
)
from sluicegate.gateway.api.hits import MEASURED_ONE_OF
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.load_shedding import LoadShedder
from sluicegate.gateway.api.request_state import OnReply, RequestState
from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.http.request_head import split_fields
from sluicegate.gateway.http.side import error_of
from sluicegate.gateway.http.unsent_answers import LARGE_BYTES
from sluicegate.gateway.tasks import log_failure
from sluicegate.gateway.telemetry.trace_context import MARK
from sluicegate.wire.http.connection import Connection, Front
from sluicegate.wire.http.messages import STATUS_LINE, answer_head
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.writing import WriteCoalescer

_END = b"\r\n\r\n"
# So much is answered before looking whether the peer still reads.
_MOST_AT_ONCE = 64 * 1024


class FastPath:
    """Passes the plain requests of a worker to the core, and replays hits. One per worker."""

    def __init__(self, core: Core, *, heads: RequestHeadCache, shedder: LoadShedder) -> None:
        self.core = core
        self.heads = heads
        self._shedder = shedder
        processor = self._processor = core.processor
        self.hit_events = processor.hits.events
        self.coalescer = WriteCoalescer(before=self.hit_events.commit)
        self._hits = processor.hits
        self._split = processor.tracer.contexts.split
        self._is_traced = processor.tracer.is_on
        self._splits_first = False
        self._until_measured = MEASURED_ONE_OF
        self._server_lines = b""
        self._hit_lines = b""

    def replay(self, request: bytes, server_lines: bytes) -> bytes | RepeatedRequest | None:
        """Return the answer to a whole request that is the same as an earlier memory hit.

        If the request is the same as an earlier hit of another tier, return the first argument of
        `repeat`. Return `None` otherwise; see also `MemoryHits.replay`.
        """
        context = ""
        found = None if self._splits_first else self.heads.find_replayable(request)
        if found is None:
            was_looked_up, rest = not self._splits_first, request
            if MARK in request:
                context, rest = self._split(request)
            # The next request is most likely of this kind, too: one look-up for each suffices.
            self._splits_first = rest is not request
            if rest is request and was_looked_up:
                return None
            found = self.heads.find_replayable(rest)
            if found is None:
                return None
        if isinstance(found, RepeatedRequest):
            return None if context else found  # `repeat` decides whether it is recorded
        if server_lines is not self._server_lines:  # their date changes each second
            self._server_lines = server_lines
            self._hit_lines = STATUS_LINE[200] + server_lines + HIT
        if context and self._is_traced:
            return self._hits.replay_traced(found, self._hit_lines, context)
        return self._hits.replay(found, self._hit_lines)

    def repeat(
        self, repeated: RepeatedRequest, request: bytes, on_reply: OnReply
    ) -> HttpReply | RequestState:
        """Do as `answer`, for a whole `request` that `replay` has found."""
        state = self._new_state(repeated.head, "")
        state.parsed = repeated.parsed
        self._until_measured -= 1
        if self._until_measured:
            state.phase_weight = 0
        else:
            state.phase_weight = self._until_measured = MEASURED_ONE_OF
        reply = self.core.answer(state, b"", on_reply)
        if state.replay is not None:
            self.heads.add_replayable(request, state.replay)
        return reply or state

    def shed(self, known: CachedHead) -> HttpReply | None:
        """Count a request. Return the refusal of an overloaded worker, `None` if it admits it."""
        if not self._shedder.add_request():
            return None
        return self._shedder.refuse(known.match.route, known.options, known.own_lines)

    def answer(
        self,
        found: FoundHead,
        body: bytes,
        on_reply: OnReply,
        refusal: GatewayError | None = None,
    ) -> HttpReply | RequestState:
        """Return the answer to a request, or its state if `on_reply` gets the answer.

        Equal requests replay a plain memory hit from now on.
        """
        head = found.known
        state = self._new_state(head, found.context)
        if refusal is not None:
            return self._processor.failed(state, refusal)
        reply = self.core.answer(state, body, on_reply)
        parsed, may_repeat = state.parsed, head.is_plain and not found.context
        if state.replay is not None:
            self.heads.add_replayable(found.head + body, state.replay)
        elif may_repeat and parsed is not None and parsed.stored is not None:
            self.heads.add_replayable(found.head + body, RepeatedRequest(head, parsed))
        return reply or state

    def _new_state(self, head: CachedHead, context: str) -> RequestState:
        state = self._processor.new_state(head.match)
        state.principal = head.principal
        state.options = head.options
        if head.is_plain:
            state.is_plain = True
        state.wants_timing = head.wants_timing
        if head.coding:
            state.coding = head.coding
        if head.own_lines:
            state.own_lines, state.caller_id = head.own_lines, head.caller_id
        if head.fields:
            state.fields = head.fields
        if context or self._is_traced:
            self._processor.start_span(state, context)
        # As `on_head_read`, which would be another call.
        state.is_body_due = False
        state.deadline = state.started + head.options.allowed
        return state


class FastPathFront(Front):
    """Answers the requests of one connection by the fast path."""

    def __init__(self, fast_path: FastPath, connection: Connection) -> None:
        self._fast_path = fast_path
        self._connection = connection
        self._state = connection.state
        self._replay = fast_path.replay
        self._waiting: RequestState | None = None
        """The request whose answer comes later."""

    @override
    def take(self, data: bytes) -> bytes:
        """Answer what can be answered, and return the rest."""
        connection = self._connection
        answer = self._replay(data, self._state.default_lines)
        if isinstance(answer, bytes):
            connection.writer.write(answer)
            connection.answers += 1
            return b""
        if answer is None or connection.peer.counts_requests:
            return self._answer(data)
        self._repeat(answer, data)
        return b""

    def cancel(self, msg: object = None) -> None:
        """End the request whose answer comes later.

        A server that stops calls this when it has waited for long enough.
        """
        if self._waiting is not None:
            self._fast_path.core.cancel(self._waiting)

    def _answer(self, data: bytes) -> bytes:
        fast_path, connection, start, size = self._fast_path, self._connection, 0, 0
        peer, answers = connection.peer, list[bytes]()
        while (end := data.find(_END, start) + 4) > 3:  # noqa: PLR2004 - found
            head = fast_path.heads.find(data[start:end])
            if head is None or end + head.length > len(data):
                break
            stop = end + head.length
            # Count the request for the client that the proxy names, before limits are charged.
            refusal = self._count(head.head) if peer.counts_requests else None
            reply = fast_path.shed(head.known) or fast_path.answer(
                head, data[end:stop], self._on_reply, refusal
            )
            if isinstance(reply, RequestState):
                self._wait(reply, answers)
                connection.hold(data[stop:])
                return b""
            if peer.counts_requests and refusal is None:
                peer.end_request()
            answers.append(self._head(reply) + reply.body)
            start = stop
            size += len(answers[-1])
            if size > _MOST_AT_ONCE:
                self._send(answers)
                fast_path.coalescer.release()
                answers, size = [], 0
                if connection.writer.is_paused:
                    break
        self._send(answers)
        rest = data[start:] if start else data
        if connection.writer.is_paused:
            connection.hold(rest)
            return b""
        return rest

    def _repeat(self, repeated: RepeatedRequest, request: bytes) -> None:
        """Answer a whole request that is the same as an earlier one."""
        fast_path = self._fast_path
        reply = fast_path.shed(repeated.head) or fast_path.repeat(repeated, request, self._on_reply)
        if isinstance(reply, RequestState):
            self._wait(reply)
        else:
            self._send([self._head(reply) + reply.body])

    def _count(self, head: bytes) -> GatewayError | None:
        """Count a request for its client, or return why it is refused."""
        try:
            self._connection.peer.begin_request(split_fields(head))
        except Refusal as refusal:
            return error_of(refusal)
        return None

    def _send(self, answers: Sequence[bytes]) -> None:
        if answers:
            self._connection.writer.write(b"".join(answers))
            self._connection.answers += len(answers)

    def _wait(self, state: RequestState, answers: Sequence[bytes] = ()) -> None:
        """Send `answers` to what came before `state`, whose answer comes later."""
        self._send(answers)
        self._connection.answering = state
        self._connection.gives_up_at = state.deadline + self._state.timeouts.idle
        self._waiting = state
        self._state.tasks.add(self)  # a stop waits for it

    def _on_reply(self, state: RequestState, reply: HttpReply) -> None:
        connection = self._connection
        self._waiting = None
        self._state.tasks.discard(self)
        try:
            if connection.writer.is_paused or len(reply.body) > LARGE_BYTES:
                self._fast_path.hit_events.commit()  # the answer is written later, if at all
                task = connection.loop.create_task(self._end_slowly(state, reply))
                self._state.tasks.add(task)
                task.add_done_callback(self._state.tasks.discard)
                return  # the task releases it
            self._end(reply)
        except Exception as error:  # noqa: BLE001 - others wait for what is computed with it
            connection.give_up()
            log_failure(error)
        if state.held_bytes:
            self._fast_path.core.release(state)

    async def _end_slowly(self, state: RequestState, reply: HttpReply) -> None:
        """Send an answer once the peer has read what came before. Send a large one in pieces."""
        connection = self._connection
        try:
            await connection.writer.drain()
            if len(reply.body) > LARGE_BYTES and not connection.writer.is_closing():
                connection.gives_up_at = math.inf  # slow peers are closed by their rate
                is_last = connection.is_last
                head = self._head(reply, is_last=is_last)
                await connection.writer.write_in_pieces(head, reply.body, state.holder)
                connection.end_answer(is_last=is_last)
            else:
                self._end(reply)
        except BaseException:  # whatever it was, nobody must wait for what will not come
            connection.give_up()
            raise
        finally:
            self._fast_path.core.release(state)

    def _end(self, reply: HttpReply) -> None:
        connection = self._connection
        if connection.writer.is_closing():
            self._fast_path.hit_events.commit()  # nothing is written that would do so
            is_last = False
        else:
            is_last = connection.is_last
            connection.writer.write(self._head(reply, is_last=is_last) + reply.body)
        connection.end_answer(is_last=is_last)

    def _head(self, reply: HttpReply, *, is_last: bool = False) -> bytes:
        lines, length = self._state.default_lines, len(reply.body)
        return answer_head(reply.status, reply.lines, length, lines, is_last=is_last)
