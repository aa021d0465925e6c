"""Answers inference requests, whatever they came by: a connection, a call of gRPC, a batch job.

The caller has decided a request by its head (`RequestState`) and has its whole body. The core takes
it through the steps of `RequestProcessor` (decode, authorize, charge, read the cache, compute,
store, encode, publish the event), and gives the answer at once or by a callback.
"""

import asyncio
from functools import partial

from sluicegate.gateway.api.content_coding import SMALLEST
from sluicegate.gateway.api.error_handling import problem_reply
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.request_processor import SHORT, RequestProcessor
from sluicegate.gateway.api.request_state import OnReply, RequestState
from sluicegate.gateway.tasks import log_failure


class Core:
    """Takes requests from their body to their answer. One per worker."""

    def __init__(self, processor: RequestProcessor) -> None:
        self.processor = processor
        self._commit_hits = processor.hits.events.commit
        self._tasks = set[asyncio.Task[HttpReply]]()

    def answer(self, state: RequestState, body: bytes, on_reply: OnReply) -> HttpReply | None:
        """Return the answer, an error included. Return `None` if `on_reply` gets it.

        `on_reply` is called once, in a later event-loop iteration. Call `release` once the
        answer was sent or dropped. If `state.parsed` is set, `body` is not read.
        """
        if len(body) > SHORT:
            self._start(state, on_reply, body)
            return None
        reply = self.processor.reply_now(state, body)
        if reply is None:
            state.on_reply = on_reply
            try:
                if not self.processor.pursue(state, self._on_pursued):
                    self._start(state, on_reply)
            except Exception as error:  # noqa: BLE001 - one request's fault must not end the worker
                reply = self.processor.give_up(state, error)
        elif _is_compressed(state, reply):
            self._start(state, on_reply, reply=reply)
            return None
        return reply

    async def reply(self, state: RequestState, body: bytes) -> HttpReply:
        """Return the answer, an error included.

        If the caller is cancelled, the request ends, and this returns its error in place of raising
        `CancelledError`. The caller may check `Task.cancelling`.
        """
        state.is_alone = True
        answered: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()

        def on_reply(_: RequestState, reply: HttpReply) -> None:
            answered.set_result(reply)

        reply = self.answer(state, body, on_reply)
        if reply is not None:
            return reply
        while True:
            try:
                return await asyncio.shield(answered)
            except asyncio.CancelledError:
                self.cancel(state)

    def cancel(self, state: RequestState) -> None:
        """Give up a request that waits. `on_reply` soon gets an error, or what is ready."""
        asyncio.get_running_loop().call_soon(self._cancel, state)

    def release(self, state: RequestState) -> None:
        """Release the memory of an answer that was sent, or will not be."""
        self.processor.large_answers.release(state)

    def _cancel(self, state: RequestState) -> None:
        if state.waiter is not None:
            state.waiter.cancel()
        elif state.on_reply is not None:
            on_reply, state.on_reply = state.on_reply, None
            on_reply(state, self.processor.give_up(state, asyncio.CancelledError()))

    def _on_pursued(self, state: RequestState, reply: HttpReply | None) -> None:
        """Pass on what the callbacks found. Without a reply, a task goes on."""
        on_reply, state.on_reply = state.on_reply, None
        if on_reply is None:
            return  # it was given up
        if reply is None or _is_compressed(state, reply):
            self._start(state, on_reply, reply=reply)
        else:
            on_reply(state, reply)

    def _start(
        self,
        state: RequestState,
        on_reply: OnReply,
        body: bytes = b"",
        reply: HttpReply | None = None,
    ) -> None:
        """Answer by a task what has to wait for a thread, a turn, or the limiter."""
        if reply is not None:
            self._commit_hits()  # its event must not wait for the answer
        task = asyncio.get_running_loop().create_task(self._answer_later(state, body, reply))
        state.waiter = task
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_waited, state, on_reply, reply))

    def _on_waited(
        self,
        state: RequestState,
        on_reply: OnReply,
        known: HttpReply | None,
        task: asyncio.Task[HttpReply],
    ) -> None:
        """Pass on the answer of a task. `known` is the answer that it was to compress, if any."""
        self._tasks.discard(task)
        try:
            reply = task.result()
        except asyncio.CancelledError as error:  # before its first step
            reply = known or self.processor.give_up(state, error)
        except Exception as error:  # noqa: BLE001 - somebody waits for the answer
            log_failure(error)
            reply = known or problem_reply(error, state.id, errors=state.route.errors)
        on_reply(state, reply)

    async def _answer_later(
        self, state: RequestState, body: bytes, reply: HttpReply | None
    ) -> HttpReply:
        if reply is None:
            reply = await self.processor.reply_later(state, body)
            self._commit_hits()  # as above
        if len(reply.body) >= SMALLEST:
            try:
                reply = await self.processor.large_answers.finish(state, reply)
            except asyncio.CancelledError:
                pass  # it is sent as it is
            except Exception as error:  # noqa: BLE001 - as above
                log_failure(error)
        return reply


def _is_compressed(state: RequestState, reply: HttpReply) -> bool:
    """Return whether a thread compresses the answer before it is sent."""
    return state.coding != "" and len(reply.body) >= SMALLEST
