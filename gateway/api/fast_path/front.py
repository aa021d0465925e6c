"""Answers plain inference requests of a connection as their bytes arrive, by the core's rules.

A request that waits for Redis or a backend is answered by a callback, and by a task only where
limits or stale answers are waited for. Requests of another kind are left to the core.
"""

import asyncio
import math
from collections.abc import Sequence
from functools import partial

from typing_extensions import override

from gateway.api.answers import HIT
from gateway.api.content_coding import SMALLEST
from gateway.api.fast_path.head_cache import (
    CachedHead,
    FoundHead,
    RepeatedRequest,
    RequestHeadCache,
)
from gateway.api.hits import MEASURED_ONE_OF
from gateway.api.http import HttpReply
from gateway.api.load_shedding import LoadShedder
from gateway.api.request_processor import SHORT, RequestProcessor
from gateway.api.request_state import RequestState
from gateway.errors import GatewayError
from gateway.http.request_head import split_fields
from gateway.http.side import error_of
from gateway.http.unsent_answers import LARGE_BYTES
from gateway.tasks import log_failure
from gateway.telemetry.trace_context import MARK
from wire.http.connection import Connection, Front
from wire.http.messages import STATUS_LINE, answer_head
from wire.http.refusals import Refusal
from wire.http.writing import WriteCoalescer

_END = b"\r\n\r\n"
# So much is answered before looking whether the peer still reads.
_MOST_AT_ONCE = 64 * 1024


class FastPath:
    """Answers the requests of a worker at once, or returns the state of those that have to wait.

    It needs no connection.
    """

    def __init__(
        self, *, processor: RequestProcessor, heads: RequestHeadCache, shedder: LoadShedder
    ) -> None:
        self.heads = heads
        self._shedder = shedder
        self.hit_events = processor.hits.events
        self.coalescer = WriteCoalescer(before=self.hit_events.commit)
        self.processor = processor
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

    def repeat(self, repeated: RepeatedRequest, request: bytes) -> HttpReply | RequestState:
        """Do as `reply`, for a whole `request` that `replay` has found."""
        state = self._new_state(repeated.head, "")
        state.parsed = repeated.parsed
        self._until_measured -= 1
        if self._until_measured:
            state.phase_weight = 0
        else:
            state.phase_weight = self._until_measured = MEASURED_ONE_OF
        reply = self.processor.reply_now(state, b"")
        if state.replay is not None:
            self.heads.add_replayable(request, state.replay)
        return _reply_or_state(state, reply)

    def shed(self, known: CachedHead) -> HttpReply | None:
        """Count a request. Return the refusal of an overloaded worker, `None` if it admits it."""
        if not self._shedder.add_request():
            return None
        return self._shedder.refuse(known.match.route, known.options, known.own_lines)

    def reply(
        self, found: FoundHead, body: bytes, refusal: GatewayError | None = None
    ) -> HttpReply | RequestState:
        """Return the answer to a request, or its state if the request has to wait.

        Equal requests replay a plain memory hit from now on.
        """
        head = found.known
        state = self._new_state(head, found.context)
        if refusal is not None:
            return self.processor.failed(state, refusal)
        if len(body) > SHORT:
            state.unread = body
            return state
        reply = self.processor.reply_now(state, body)
        parsed, may_repeat = state.parsed, head.is_plain and not found.context
        if state.replay is not None:
            self.heads.add_replayable(found.head + body, state.replay)
        elif may_repeat and parsed is not None and parsed.stored is not None:
            self.heads.add_replayable(found.head + body, RepeatedRequest(head, parsed))
        return state if reply is None else _reply_or_state(state, reply)

    def _new_state(self, head: CachedHead, context: str) -> RequestState:
        state = self.processor.new_state(head.match)
        state.principal = head.principal
        state.options = head.options
        if head.is_plain:
            state.is_plain = True
        state.wants_timing = head.wants_timing
        if head.coding:
            state.coding = head.coding
        if head.own_lines:
            state.own_lines, state.client_id = head.own_lines, head.client_id
        if head.fields:
            state.fields = head.fields
        if context or self._is_traced:
            self.processor.start_span(state, context)
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
        self._pursued: RequestState | None = None
        """The request that is answered by callbacks."""

    @override
    def take(self, data: bytes) -> bytes:
        """Answer what can be answered, and return what is left for the core."""
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
        """Fail the request that is answered by callbacks, as cancelling its task would.

        The server calls it if it has waited for long enough.
        """
        if self._pursued is not None:
            self._connection.loop.call_soon(self._give_up, self._pursued)

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
            reply = fast_path.shed(head.known) or fast_path.reply(head, data[end:stop], refusal)
            if isinstance(reply, RequestState):
                self._begin(reply, answers)
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
        reply = fast_path.shed(repeated.head) or fast_path.repeat(repeated, request)
        if isinstance(reply, RequestState):
            self._begin(reply)
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

    def _begin(self, state: RequestState, answers: Sequence[bytes] = ()) -> None:
        """Send `answers` to what came before, and start to answer `state`."""
        self._send(answers)
        connection = self._connection
        connection.answering = state
        connection.gives_up_at = state.deadline + self._state.timeouts.idle
        if state.reply is not None:
            self._fast_path.hit_events.commit()  # the answer is written later, if at all
            self._start(state, state.reply)
            return
        self._pursued = state
        self._state.tasks.add(self)
        is_pursued = False
        try:
            is_pursued = self._fast_path.processor.pursue(state, partial(self._on_reply, state))
        finally:
            if not is_pursued:  # a stop must not wait for it
                self._forget()
        if not is_pursued:
            self._start(state)

    def _on_reply(self, state: RequestState, reply: HttpReply | None) -> None:
        if self._pursued is not state:
            return  # it was cancelled
        # As `_forget`, which would be another call.
        self._pursued = None
        self._state.tasks.discard(self)
        try:
            if reply is None:
                self._start(state)
            elif self._connection.writer.is_paused or _is_compressed(state, reply):
                self._fast_path.hit_events.commit()  # the answer is written later, if at all
                self._start(state, reply)
            else:
                self._end(reply)
        except Exception as error:  # noqa: BLE001 - others wait for what is computed with it
            self._connection.give_up()
            log_failure(error)

    def _start(self, state: RequestState, reply: HttpReply | None = None) -> None:
        """Answer `state` by a task."""
        tasks = self._state.tasks
        task = self._connection.loop.create_task(self._answer_later(state, reply))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _forget(self) -> None:
        self._pursued = None
        self._state.tasks.discard(self)

    def _give_up(self, state: RequestState) -> None:
        if self._pursued is state:
            self._forget()
            self._end(self._fast_path.processor.give_up(state, asyncio.CancelledError()))

    async def _answer_later(self, state: RequestState, reply: HttpReply | None) -> None:
        processor, connection = self._fast_path.processor, self._connection
        try:
            if reply is None:
                if state.unread:
                    reply = await processor.answer(state, state.unread)
                else:
                    reply = await processor.reply_later(state)
            if len(reply.body) >= SMALLEST:
                reply = await processor.large_answers.finish(state, reply)
            await connection.writer.drain()
            if len(reply.body) > LARGE_BYTES and not connection.writer.is_closing():
                await self._end_large(state, reply)
            else:
                self._end(reply)
        except BaseException:  # whatever it was, nobody must wait for what will not come
            connection.give_up()
            raise
        finally:
            processor.large_answers.release(state)

    async def _end_large(self, state: RequestState, reply: HttpReply) -> None:
        """Send an answer in pieces."""
        connection = self._connection
        connection.gives_up_at = math.inf  # slow peers are closed by their rate
        is_last = connection.is_last
        head = self._head(reply, is_last=is_last)
        await connection.writer.write_in_pieces(head, reply.body, state.holder)
        connection.end_answer(is_last=is_last)

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


def _reply_or_state(state: RequestState, reply: HttpReply | None) -> HttpReply | RequestState:
    """Return an answer that can be sent at once, or the state of a request that has to wait."""
    if reply is not None and _is_compressed(state, reply):
        state.reply = reply  # it is compressed first, in a thread
        return state
    return reply or state


def _is_compressed(state: RequestState, reply: HttpReply) -> bool:
    return state.coding != "" and len(reply.body) >= SMALLEST
