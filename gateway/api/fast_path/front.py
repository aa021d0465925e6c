"""Answers plain requests of a connection as their bytes arrive, by the core's rules.

A request that waits for Redis or a backend is answered by a callback, and by a task only where
limits or stale answers are waited for. Requests of another kind are left to the core.
"""

import asyncio
import math
from collections.abc import Sequence
from functools import partial

from typing_extensions import override

from gateway.api.content_coding import SMALLEST
from gateway.api.fast_path.answering import FastPath
from gateway.api.fast_path.head_cache import RepeatedRequest
from gateway.api.http import HttpReply
from gateway.api.request_state import RequestState
from gateway.errors import GatewayError
from gateway.http.request_head import split_fields
from gateway.http.side import error_of
from gateway.http.unsent_answers import LARGE_BYTES
from gateway.tasks import log_failure
from wire.http.connection import Connection, Front
from wire.http.messages import answer_head
from wire.http.refusals import Refusal

_END = b"\r\n\r\n"
# So much is answered before looking whether the peer still reads.
_MOST_AT_ONCE = 64 * 1024


class FastPathFront(Front):
    """The fast path of one connection."""

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
            head = fast_path.find(data[start:end])
            if head is None or end + head.length > len(data):
                break
            stop = end + head.length
            # Count the request for the client that the proxy names, before limits are charged.
            refusal = self._count(head.head) if peer.counts_requests else None
            refused = fast_path.shed(head.known) if fast_path.shedder.add_request() else None
            reply = refused or fast_path.reply(head, data[end:stop], refusal)
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
        refused = fast_path.shed(repeated.head) if fast_path.shedder.add_request() else None
        reply = refused or fast_path.repeat(repeated, request)
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


def _is_compressed(state: RequestState, reply: HttpReply) -> bool:
    return state.coding != "" and len(reply.body) >= SMALLEST
