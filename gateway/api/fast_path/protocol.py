"""Implements the fast path: answers plain requests inside the HTTP protocol, without ASGI.

Whole requests are answered as their bytes arrive, by the same rules as the application's. One that
waits for Redis or a backend is answered by a callback, and by a task only where limits or stale
answers are waited for. Requests of another kind are passed to the application, their bytes
untouched.
"""

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from gateway.api.content_coding import SMALLEST
from gateway.api.fast_path.answering import FastPath
from gateway.api.fast_path.head_cache import RepeatedRequest
from gateway.api.http import HttpReply
from gateway.api.request_state import RequestState
from gateway.errors import GatewayError
from gateway.http.request_head import split_fields
from gateway.http.unsent_answers import LARGE_BYTES
from gateway.http.write_coalescing import WriteCoalescingProtocol
from gateway.tasks import log_failure
from gateway.types import Answer

_END = b"\r\n\r\n"
# So much is answered before looking whether the peer still reads.
_MOST_AT_ONCE = 64 * 1024


class FastPathProtocol(WriteCoalescingProtocol):
    """uvicorn's protocol with the fast path before it.

    A request takes the fast path only while the application has none of the connection's, so that
    answers keep their order. While the peer does not read, or an answer of the fast path is
    waited for, nothing is answered or read.
    """

    def __init__(self, *args: Any, fast_path: FastPath, **kwargs: Any) -> None:
        super().__init__(*args, coalescer=fast_path.coalescer, **kwargs)
        self._fast_path = fast_path
        self._is_between = True
        self._is_waiting = False
        self._computed: RequestState | None = None
        """The request that is answered without a task, by what backends compute."""
        self._waits_until = 0.0
        self._is_ending = False
        self._held = b""

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_waiting or self._held:
            data = self._hold(data)
        elif self._is_between and (self.cycle is None or self.cycle.response_complete):
            if self.flow.write_paused:
                data = self._hold(data)
            else:
                answer = self._fast_path.replay(data, self.server_state.default_headers)
                if isinstance(answer, bytes):
                    # As `_send`, by the time of this event-loop iteration.
                    self.transport.write(answer)
                    self.server_state.total_requests += 1
                    self._answered_at = self._fast_path.hit_events.started
                    if self.timeout_keep_alive_task is None:
                        self._wait_for_requests(self.timeout_keep_alive)
                    return
                if answer is None or self._peer.requests.most:
                    data = self._answer(data)
                else:
                    self._repeat(answer, data)
                    return
        if data:
            super().data_received(data)

    @override
    def on_message_begin(self) -> None:
        self._is_between = False
        super().on_message_begin()

    @override
    def on_message_complete(self) -> None:
        super().on_message_complete()
        # Not where an upgrade is ignored: its body comes only now.
        self._is_between = not self._is_in_body

    @override
    def refuse(self, error: GatewayError) -> None:
        self._is_between = False
        super().refuse(error)

    @override
    def eof_received(self) -> bool:  # type: ignore[override]  # see `StrictHttpProtocol`
        if not (self._is_waiting or self._held):
            return super().eof_received()
        self._is_at_eof = True
        self.shutdown()
        return self.stays_half_open

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held:
            self.loop.call_soon(self._go_on)

    @override
    def timeout_keep_alive_handler(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if self._is_waiting:
            left = self.timeout_keep_alive
        if left > 0 and not self.transport.is_closing():
            self._wait_for_requests(left)
        else:
            super().timeout_keep_alive_handler()

    @override
    def close_if_timed_out(self, now: float) -> None:
        if not self._is_waiting:
            super().close_if_timed_out(now)
        elif now > self._waits_until:  # most likely a peer that does not read
            self.transport.abort()

    @override
    def shutdown(self) -> None:
        if self._is_waiting or self._held:
            # What was read is answered, and no more is read.
            self._is_ending = True
            self.flow.pause_reading()
        else:
            super().shutdown()

    def _answer(self, data: bytes) -> bytes:
        """Answer what can be answered, and return what is left for the application."""
        fast_path, most, start, size = self._fast_path, self._peer.requests.most, 0, 0
        answers: list[bytes] = []
        while (end := data.find(_END, start) + 4) > 3:  # noqa: PLR2004 - found
            head = fast_path.find(data[start:end])
            if head is None or end + head.length > len(data):
                break
            stop = end + head.length
            # By what proxies say, before the request is charged.
            refusal = self._count_client(split_fields(head.head)) if most else None
            refused = fast_path.shed(head.known) if fast_path.shedder.add_request() else None
            reply = refused or fast_path.reply(head, data[end:stop], refusal)
            if isinstance(reply, RequestState):
                self._begin(reply, answers)
                return self._hold(data[stop:]) if stop < len(data) else b""
            if most and refusal is None:
                self._forget_client()
            answers.append(fast_path.render(reply, self.server_state.default_headers))
            start = stop
            size += len(answers[-1])
            if size > _MOST_AT_ONCE:
                self._send(b"".join(answers), len(answers))
                fast_path.coalescer.release()
                answers, size = [], 0
                if self.flow.write_paused:
                    break
        self._send(b"".join(answers), len(answers))
        rest = data[start:] if start else data
        return self._hold(rest) if rest and self.flow.write_paused else rest

    def _repeat(self, repeated: RepeatedRequest, request: bytes) -> None:
        """Answer a whole request that is the same as an earlier one."""
        fast_path = self._fast_path
        refused = fast_path.shed(repeated.head) if fast_path.shedder.add_request() else None
        reply = refused or fast_path.repeat(repeated, request)
        if isinstance(reply, RequestState):
            self._begin(reply)
        else:
            self._send(fast_path.render(reply, self.server_state.default_headers), 1)

    def _hold(self, data: bytes) -> bytes:
        """Keep `data` until it can be answered, and read no more meanwhile than one read."""
        if data:
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

    def _begin(self, state: RequestState, answers: Sequence[bytes] = ()) -> None:
        """Send `answers` to what came before, and start to answer `state`.

        Until that is answered nothing else is.
        """
        if answers:
            self._send(b"".join(answers), len(answers))
        self._is_waiting = True
        self._waits_until = state.deadline + self._timeouts.idle
        if state.reply is not None:
            self._fast_path.hit_events.commit()  # the answer is written later, if at all
            self._start(state, state.reply)
            return
        if not self._fast_path.processor.lookup_nowait(state, partial(self._on_lookup_done, state)):
            self._start(state)

    def _on_lookup_done(self, state: RequestState, reply: HttpReply | None) -> None:
        try:
            if reply is None:
                self._start(state)
            elif self.flow.write_paused or (state.coding and len(reply.body) >= SMALLEST):
                self._fast_path.hit_events.commit()  # the answer is written later, if at all
                self._start(state, reply)
            else:
                self._end(reply)
        except BaseException:  # whatever it was, nobody must wait for what will not come
            self.transport.abort()
            raise

    def _start(self, state: RequestState, reply: HttpReply | None = None) -> None:
        """Answer `state` once it is computed; by a task where that takes more than a callback."""
        if reply is None:
            self._computed = state
            self.tasks.add(self)  # type: ignore[arg-type]  # it can be cancelled
            try:
                on_done = partial(self._on_computed, state)
                if self._fast_path.processor.compute_nowait(state, on_done):
                    return
            except BaseException:  # whatever it was, a stop must not wait for it
                self._forget_computed()
                raise
            self._forget_computed()
        task = self.loop.create_task(self._answer_later(state, reply))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _on_computed(self, state: RequestState, answer: Answer) -> None:
        if self._computed is not state:
            return  # it was cancelled
        # As `_forget_computed`, which would be another call.
        self._computed = None
        self.tasks.discard(self)
        try:
            reply = self._fast_path.processor.reply(state, answer)
            if reply is None:
                self._start(state)
            elif self.flow.write_paused or (state.coding and len(reply.body) >= SMALLEST):
                self._fast_path.hit_events.commit()  # the answer is written later, if at all
                self._start(state, reply)
            else:
                self._end(reply)
        except Exception as error:  # noqa: BLE001 - others wait for what is computed with it
            self.transport.abort()
            log_failure(error)

    def _forget_computed(self) -> None:
        self._computed = None
        self.tasks.discard(self)

    def cancel(self, msg: object = None) -> None:
        """Answer the request that is computed as failed, as cancelling its task would.

        The server calls it where it waited for long enough.
        """
        if self._computed is not None:
            self.loop.call_soon(self._give_up, self._computed)

    def _give_up(self, state: RequestState) -> None:
        if self._computed is state:
            self._forget_computed()
            self._end(self._fast_path.processor.failed(state, asyncio.CancelledError()))

    async def _answer_later(self, state: RequestState, reply: HttpReply | None) -> None:
        processor = self._fast_path.processor
        try:
            if reply is None:
                reply = await processor.reply_later(state)
            if len(reply.body) >= SMALLEST:
                reply = await processor.large_answers.finish(state, reply)
            if self.flow.write_paused:
                await self.flow.drain()
            is_large = len(reply.body) > LARGE_BYTES
            if is_large:
                await self._send_large(state, reply)
            self._end(reply, is_sent=is_large)
        except BaseException:  # whatever it was, nobody must wait for what will not come
            self.transport.abort()
            raise
        finally:
            processor.large_answers.release(state)

    async def _send_large(self, state: RequestState, reply: HttpReply) -> None:
        """Send an answer in pieces; `_end` has to follow."""
        if self.transport.is_closing():
            return
        self._waits_until = math.inf  # slow peers are closed by their rate
        is_last = self._is_ending and not self._held
        headers = self.server_state.default_headers
        head = self._fast_path.render_head(reply, headers, is_last=is_last)
        await self._coalescing_transport.write_in_pieces(head, reply.body, self.flow, state.holder)

    def _end(self, reply: HttpReply, *, is_sent: bool = False) -> None:
        self._is_waiting = False
        if self._clients:
            self._forget_client()
        if self.transport.is_closing():
            self._fast_path.hit_events.commit()  # nothing is written that would do so
            return
        is_last = self._is_ending and not self._held
        headers = self.server_state.default_headers
        rendered = b"" if is_sent else self._fast_path.render(reply, headers, is_last=is_last)
        self._send(rendered, 1)
        if is_last:
            self.transport.close()
        elif self._held:
            # Not from here: what goes wrong with the next must not take this answer along.
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Answer what was held back."""
        is_closing = self.transport.is_closing()
        if not self._held or self._is_waiting or self.flow.write_paused or is_closing:
            return
        data, self._held = self._held, b""
        if not self._is_ending:
            self.flow.resume_reading()
        try:
            self.data_received(data)
        except BaseException:  # whatever it was, nobody must wait for what will not come
            self.transport.abort()
            raise
        if self._is_ending and not self._is_waiting and not self._held:
            # The rest, if any, is the application's.
            if self._is_at_eof:
                super().eof_received()
            else:
                super().shutdown()

    def _wait_for_requests(self, seconds: float) -> None:
        handler = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)
