"""Takes the inference requests that are not for the fast path through the steps before the core.

A request passes these steps: cross-origin rules and bounds of keys, load shedding, decompression,
idempotency, the check of its head, and the arrival of its body. Then the core answers it.

The fast path keeps what these steps decide about a plain head, and skips them for equal heads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.api.core import Core
from gateway.api.http import ClientDisconnected, HttpReply, header_fields
from gateway.api.idempotent_requests import ClaimedKey
from gateway.api.incoming_request import IncomingBody, IncomingRequest
from gateway.api.inference_route import RouteMatch
from gateway.api.load_shedding import LoadShedder
from gateway.api.request_state import RequestState
from gateway.api.request_steps import RequestSteps
from gateway.types import KeyId

_FIRST_ERROR: Final = 400
Send = Callable[[HttpReply, KeyId | None], Awaitable[None]]
"""Sends an answer. The key, if any, holds bytes of the budget for it until this returns."""


class InferenceRequests:
    """Takes requests through the steps before the core. One per worker."""

    def __init__(self, core: Core, *, steps: RequestSteps, shedder: LoadShedder) -> None:
        self._core = core
        self._processor = core.processor
        self._steps = steps
        self._shedder = shedder

    async def answer(
        self, match: RouteMatch, request: IncomingRequest, body: IncomingBody, on_reply: Send
    ) -> None:
        """Answer a request to the route of `match`: `on_reply` gets the answer, errors included.

        If `on_reply` is not called, the caller is gone.
        """

        async def send(reply: HttpReply, holder: KeyId | None = None) -> None:
            await on_reply(reply.with_lines(request.added_lines), holder)

        claimed: ClaimedKey | None = None
        try:
            prepared = (
                self._steps.answer_early(request)
                or self._shedder.answer_early(request, match.route)
                or await self._steps.prepare(request, body)
            )
            if isinstance(prepared, HttpReply):
                await send(prepared)
            else:
                claimed = prepared
                await self._work(match, request, body, claimed, send)
        except ClientDisconnected:
            return
        finally:
            body.release()
            if claimed is not None:
                await claimed.end()

    async def _work(
        self,
        match: RouteMatch,
        request: IncomingRequest,
        body: IncomingBody,
        claimed: ClaimedKey | None,
        send: Send,
    ) -> None:
        processor = self._processor
        state = processor.new_state(match)
        processor.start_span(state, processor.tracer.contexts.read(request.headers))
        try:
            reply = await self._reply(state, request, body)
            body.release()
            if claimed is not None:  # before the answer, so that retries do not find it claimed
                if _is_final(state):
                    await claimed.store(reply.status, header_fields(reply.lines), reply.body)
                else:
                    await claimed.end()
            await send(reply, state.holder)
        except ClientDisconnected:
            state.span.fail("client_gone")
            state.span.end()
        finally:
            self._core.release(state)

    async def _reply(
        self, state: RequestState, request: IncomingRequest, body: IncomingBody
    ) -> HttpReply:
        """Return the whole answer, an error's included."""
        try:
            self._processor.read_head(state, request)
            state.on_head_read()
            raw = await body.read(request, state.runtime, state.deadline)
        except ClientDisconnected:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - must not end the worker
            return self._processor.failed(state, error)
        return await self._core.reply(state, raw)


def _is_final(state: RequestState) -> bool:
    """Return whether another try would end in the same way, whatever status its dialect gives."""
    # An answer that another try may complete is recorded under the id of its attempt.
    lacks_items = state.attempt == state.id and state.status < _FIRST_ERROR
    return not (state.is_passing or lacks_items)
