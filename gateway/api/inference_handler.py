"""The inference routes for the application: a raw ASGI handler that reads, asks the rules, sends.

What it does with a request is decided by `gateway.api.rules`, which the fast lane asks too.
"""

import asyncio
from functools import partial

from litestar.types import HTTPScope, Receive, Send

from backends.protocol import Task
from gateway.api.body_budget import LARGE, BodyMemoryBudget
from gateway.api.fast_path.body_timeouts import BodyTimeouts
from gateway.api.http import (
    ClientDisconnected,
    HttpReply,
    bounded,
    buffered_http,
    headers_by_name,
    read_body,
    respond,
)
from gateway.api.request_state import RequestState
from gateway.api.rules import InferenceRules
from gateway.http.write_coalescing import BufferedHttpExtension
from gateway.telemetry.tracing import Span, Tracer


class InferenceHandler:
    """The inference routes of a worker's application."""

    def __init__(self, *, rules: InferenceRules, tracer: Tracer) -> None:
        self._rules = rules
        self._tracer = tracer
        self._late_bodies = BodyTimeouts()
        self._body_budget = BodyMemoryBudget()

    async def handle(
        self, task: Task, model: str, scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        """Answer one request to the route of `task`; `model` is that of the path, where one is."""
        server = buffered_http(scope)
        exchange = self._rules.exchange(task)
        headers = headers_by_name(list(scope["headers"]))
        incoming = headers.get(b"traceparent", b"").decode("latin-1")
        attributes = {"http.request.method": "POST", "http.route": f"/v1/{task}"}
        with self._tracer.span(
            f"POST /v1/{task}", parent=incoming, kind="server", attributes=attributes
        ) as span:
            exchange.traceparent = span.traceparent
            try:
                reply = await self._reply(
                    exchange, model, scope["method"], headers, server, receive
                )
            except ClientDisconnected:
                return
            finally:
                self._body_budget.release(exchange)
            _describe(span, exchange)
        await _send(server, send, reply)

    async def _reply(
        self,
        exchange: RequestState,
        model: str,
        method: str,
        headers: dict[bytes, bytes],
        server: BufferedHttpExtension | None,
        receive: Receive,
    ) -> HttpReply:
        """Return the whole answer, an error's included."""
        try:
            self._rules.read_head(exchange, method, headers)
            exchange.body_is_read()
            limit = exchange.runtime.document.request.max_body_bytes
            raw = None if server is None else server.body()
            if raw is None:
                on_progress = partial(self._body_budget.reserve, exchange)
                arriving = read_body(receive, limit=limit, on_progress=on_progress)
                raw = await self._late_bodies.read(arriving, deadline=exchange.deadline)
            else:
                bounded(raw, limit=limit)
            # Large ones are read in a thread. A read of the fast lane is never as large.
            if len(raw) > LARGE:
                await self._rules.read_large(exchange, model, raw)
        except ClientDisconnected:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - must not end the worker
            return self._rules.failed(exchange, error)
        reply = self._rules.reply_now(exchange, model, raw)
        return await self._rules.reply_later(exchange) if reply is None else reply


async def _send(server: BufferedHttpExtension | None, send: Send, reply: HttpReply) -> None:
    await (respond(send, reply) if server is None else server.send(*reply))


def _describe(span: Span, exchange: RequestState) -> None:
    span.set("http.response.status_code", exchange.status)
    span.set("sluicegate.request_id", exchange.id)
    span.set("sluicegate.items", exchange.usage.items)
    if exchange.model:
        span.set("sluicegate.model", exchange.model)
    if exchange.code:
        span.fail(exchange.code)
