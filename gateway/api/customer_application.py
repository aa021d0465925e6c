"""Answers the requests that the HTTP server passes on: by the core, or by Litestar."""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from gateway.api.http import (
    NOT_REPLAYED,
    ClientDisconnected,
    HttpReply,
    buffered_http,
    header_fields,
    respond,
)
from gateway.api.idempotent_requests import LARGEST_ANSWER, ClaimedKey
from gateway.api.incoming_request import IncomingBodies, IncomingBody, IncomingRequest, request_of
from gateway.api.inference_requests import InferenceRequests
from gateway.api.inference_route import InferenceRoutes, RouteMatch
from gateway.api.request_steps import RequestSteps
from gateway.auth.key_ring import KeyRing
from gateway.types import KeyId


class CustomerApplication:
    """The ASGI application of a worker. `others` answers what is no inference request."""

    def __init__(
        self,
        requests: InferenceRequests,
        others: ASGIApp,
        *,
        routes: InferenceRoutes,
        keys: KeyRing,
        bodies: IncomingBodies,
    ) -> None:
        self._requests = requests
        self._others = others
        self._find = routes.find
        self._keys = keys
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if (
            scope["type"] == ScopeType.HTTP
            and (match := self._find(scope["path"])) is not None
            and (scope["method"] == "POST" or not match.route.has_other_methods)
        ):
            await self._infer(match, scope, receive, send)
        else:
            await self._others(scope, receive, send)

    async def _infer(
        self, match: RouteMatch, scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        server = buffered_http(scope)
        take_whole = (lambda: None) if server is None else server.body

        async def on_reply(reply: HttpReply, holder: KeyId | None) -> None:
            if server is None:
                await respond(send, reply)
            else:
                await server.send(reply.status, reply.lines, reply.body, holder)

        request = request_of(scope, self._keys)
        body = IncomingBody(self._bodies, receive, take_whole)
        await self._requests.answer(match, request, body, on_reply)


class SteppedApplication:
    """Takes requests that are no inference through the common steps, and has `app` answer them."""

    def __init__(
        self, app: ASGIApp, *, steps: RequestSteps, keys: KeyRing, bodies: IncomingBodies
    ) -> None:
        self._app = app
        self._steps = steps
        self._keys = keys
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request = request_of(scope, self._keys)
        body = IncomingBody(self._bodies, receive)
        claimed: ClaimedKey | None = None
        try:
            prepared = self._steps.answer_early(request) or await self._steps.prepare(request, body)
            if isinstance(prepared, HttpReply):
                await respond(send, prepared.with_lines(request.added_lines))
                return
            claimed = prepared
            scope = scope.copy()
            scope["headers"] = request.headers
            scope.setdefault("state", {})
            sender = _Sender(send, request, scope, claimed)
            await self._app(scope, body.receive, sender.send)
        except ClientDisconnected:
            return
        finally:
            body.release()
            if claimed is not None:
                await claimed.end()


class _Sender:
    """Sends the messages of an answer, with what the steps add to it.

    The answer to a request with an idempotency key is held until what retries get is stored.
    """

    def __init__(
        self, send: Send, request: IncomingRequest, scope: HTTPScope, claimed: ClaimedKey | None
    ) -> None:
        self._send = send
        self._fields = header_fields(request.added_lines)
        self._scope = scope
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
        if self._fields and message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *self._fields]
        await self._send(message)

    async def _settle(self, claimed: ClaimedKey, *, is_whole: bool) -> None:
        """Store the answer, unless it is too long or has a secret. The claim ends in any case."""
        start, *rest = self._held
        is_kept = is_whole and not self._scope["state"].get(NOT_REPLAYED)
        if start["type"] == "http.response.start" and is_kept:
            body = b"".join([m["body"] for m in rest if m["type"] == "http.response.body"])
            await claimed.store(start["status"], start["headers"], body)
        else:
            await claimed.end()
