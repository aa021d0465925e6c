"""Handles the inference routes of the application as a raw ASGI handler.

`RequestProcessor` decides about each request, here and on the fast path.
"""

import asyncio
import time

from litestar.types import HTTPScope, Receive, Send

from gateway.api.body_timeouts import BodyTimeouts
from gateway.api.buffered_body import hold_body
from gateway.api.content_coding import SMALLEST
from gateway.api.http import (
    NOT_REPLAYED,
    ClientDisconnected,
    HttpReply,
    bounded,
    buffered_http,
    headers_by_name,
    read_body,
    respond,
)
from gateway.api.inference_route import RouteMatch
from gateway.api.request_processor import RequestProcessor
from gateway.api.request_state import RequestState
from gateway.http.byte_budget import ByteBudget
from wire.http.exchange import Exchange

_FIRST_ERROR = 400


class InferenceHandler:
    """The inference routes of a worker's application."""

    def __init__(self, *, processor: RequestProcessor) -> None:
        self._processor = processor
        self._body_timeouts = BodyTimeouts()
        # Bodies never wait for room.
        self.body_budget = ByteBudget(0, what="Large bodies", clock=time.monotonic)

    async def handle(
        self, match: RouteMatch, scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        """Answer one request to the route of `match`."""
        server = buffered_http(scope)
        state = self._processor.new_state(match)
        fields = list(scope["headers"])
        headers = headers_by_name(fields)
        self._processor.start_span(state, self._processor.tracer.contexts.read(fields))
        try:
            reply = await self._reply(state, scope["method"], headers, server, receive)
            state.release_body()
            await self._send(state, reply, scope, server, send)
        except ClientDisconnected:
            state.span.fail("client_gone")
            state.span.end()
        finally:
            state.release_body()
            self._processor.large_answers.release(state)

    async def _send(
        self,
        state: RequestState,
        reply: HttpReply,
        scope: HTTPScope,
        server: Exchange | None,
        send: Send,
    ) -> None:
        lacks_items = state.attempt == state.id and state.status < _FIRST_ERROR
        # Another try may mend it, whatever status its dialect gives it.
        if state.is_passing or lacks_items:
            scope.setdefault("state", {})[NOT_REPLAYED] = True
        if len(reply.body) >= SMALLEST:
            reply = await self._processor.large_answers.finish(state, reply)
        if server is None:
            await respond(send, reply)
        else:
            await server.send(reply.status, reply.lines, reply.body, state.holder)

    async def _reply(
        self,
        state: RequestState,
        method: str,
        headers: dict[bytes, bytes],
        server: Exchange | None,
        receive: Receive,
    ) -> HttpReply:
        """Return the whole answer, an error's included."""
        try:
            self._processor.read_head(state, method, headers)
            state.on_head_read()
            limit = state.runtime.document.request.max_body_bytes
            raw = None if server is None else server.body()
            if raw is None:
                key = state.caller().principal.key
                held = state.held_body = hold_body(self.body_budget, state.runtime, key)
                arriving = read_body(receive, limit=limit, on_progress=held.grow)
                raw = await self._body_timeouts.read(arriving, deadline=state.deadline)
            else:
                bounded(raw, limit=limit)
        except ClientDisconnected:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - must not end the worker
            return self._processor.failed(state, error)
        return await self._processor.answer(state, raw)
