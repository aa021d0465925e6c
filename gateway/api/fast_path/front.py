"""Answers plain requests of a connection as their bytes arrive.

Requests of another kind are left to the server and the application.
"""

import math
from collections.abc import Sequence

from typing_extensions import override

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
            head = fast_path.find(data[start:end])
            if head is None or end + head.length > len(data):
                break
            stop = end + head.length
            # Count the request for the client that the proxy names, before limits are charged.
            refusal = self._count(head.head) if peer.counts_requests else None
            refused = fast_path.shed(head.known) if fast_path.shedder.add_request() else None
            reply = refused or fast_path.answer(head, data[end:stop], self._on_reply, refusal)
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
        refused = fast_path.shed(repeated.head) if fast_path.shedder.add_request() else None
        reply = refused or fast_path.repeat(repeated, request, self._on_reply)
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
