"""Answers the requests that the HTTP server passes on: by the core, or by Litestar."""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from sluicegate.gateway.api.http import (
    HttpReply,
    header_fields,
    respond,
)
from sluicegate.gateway.api.idempotent_requests import LARGEST_ANSWER, answer_for_retries
from sluicegate.gateway.api.incoming_request import (
    INCOMING,
    IncomingBodies,
    IncomingBody,
    IncomingRequest,
    request_of,
)
from sluicegate.gateway.api.inference_route import InferenceRoutes
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.idempotency.store import StoredKey
from sluicegate.gateway.types import KeyId
from sluicegate.wire.http.exchange import BUFFERED_HTTP, Exchange


class CustomerApplication:
    """The ASGI application of a worker. `others` answers what is no inference request."""

    def __init__(
        self,
        steps: RequestSteps,
        others: ASGIApp,
        *,
        routes: InferenceRoutes,
        keys: KeyRing,
        bodies: IncomingBodies,
    ) -> None:
        self._steps = steps
        self._others = others
        self._find = routes.find
        self._keys = keys
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != ScopeType.HTTP:
            await self._others(scope, receive, send)
            return
        server: object = (scope.get("extensions") or {}).get(BUFFERED_HTTP)
        take_whole = server.body if isinstance(server, Exchange) else lambda: None

        async def on_reply(reply: HttpReply, holder: KeyId | None) -> None:
            if isinstance(server, Exchange):
                await server.send(reply.status, reply.lines, reply.body, holder)
            else:
                await respond(send, reply)

        async def ask_others(claimed: StoredKey | None) -> None:
            state = scope.get("state", {}) | {INCOMING: request}
            inner = scope | {"headers": request.headers, "state": state}
            await self._others(inner, body.receive, _Sender(send, request, claimed).send)

        request = request_of(scope, self._keys)
        body = IncomingBody(self._bodies, receive, take_whole)
        match = self._find(request.path)
        if match is not None and (request.method == "POST" or not match.route.has_other_methods):
            await self._steps.answer(match, request, body, on_reply)
        else:
            await self._steps.run(request, body, on_reply, work=ask_others)


class _Sender:
    """Sends the messages of an answer, with what the steps add to it.

    The answer to a request with an idempotency key is held until what retries get is stored.
    """

    def __init__(self, send: Send, request: IncomingRequest, claimed: StoredKey | None) -> None:
        self._send = send
        self._request = request
        self._claimed = claimed
        self._held: list[Message] = []
        self._size = 0

    async def send(self, message: Message) -> None:
        claimed = self._claimed
        if claimed is None:
            await self._pass(message)
            return
        self._held.append(message)
        is_last = False
        if message["type"] == "http.response.body":
            self._size += len(message["body"])
            is_last = not message.get("more_body")
        if not is_last and self._size <= LARGEST_ANSWER:
            return
        self._claimed = None
        await self._settle(claimed, is_whole=is_last)
        for each in self._held:
            await self._pass(each)
        self._held.clear()

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *header_fields(self._request.added_lines)]
        await self._send(message)

    async def _settle(self, claimed: StoredKey, *, is_whole: bool) -> None:
        """Store the answer, unless it is too long or has a secret. The claim ends in any case."""
        start, *rest = self._held
        is_kept = is_whole and not self._request.has_secret_answer
        stored = b""
        if start["type"] == "http.response.start" and is_kept:
            body = b"".join([m["body"] for m in rest if m["type"] == "http.response.body"])
            stored = await answer_for_retries(start["status"], start["headers"], body)
        await claimed.finish(stored)
