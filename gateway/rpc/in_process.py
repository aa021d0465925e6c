"""Passes calls to the core and the application of this worker, without a connection.

A call of gRPC therefore has the keys, limits, events and errors of a request over HTTP.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from litestar.types import ASGIApp, Message, Receive

from sluicegate.gateway.api.http import Headers, HttpReply
from sluicegate.gateway.api.incoming_request import IncomingBodies, IncomingBody, IncomingRequest
from sluicegate.gateway.api.inference_route import RouteMatch
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS, OipError
from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.rpc.infer_route import ModelInferRoute
from sluicegate.gateway.rpc.messages import MessageTable
from sluicegate.gateway.tasks import TaskScope, ignore_outcome
from sluicegate.gateway.types import KeyId
from sluicegate.wire.http.messages import header_lines

_error = msgspec.json.Decoder(OipError).decode


class ApplicationRequest(NamedTuple):
    """Holds a request to the application; its path is decoded."""

    method: str
    path: str
    body: bytes = b""


def error_in(reply: HttpReply) -> OipError:
    """Return what went wrong."""
    try:
        return _error(reply.body)
    except msgspec.MsgspecError:
        return OipError(error=f"The gateway answered {reply.status}.", code="")


# grpcio bounds the calls, but the request of a cancelled call goes on and is not counted there.
_BUSY: Final = HttpReply(
    Overloaded.status,
    b"retry-after: 1\r\n",
    OIP_ERRORS.encode(Overloaded("Too many requests are under way; try again soon."), ""),
)


class InProcessCalls:
    """Asks `steps` and `app`. As over HTTP, a request goes on after its caller is cancelled.

    `tasks` waits for the requests under way, at most `most` at a time, and has no other tasks.
    """

    def __init__(
        self,
        app: ASGIApp,
        steps: RequestSteps,
        tasks: TaskScope,
        *,
        messages: MessageTable,
        keys: KeyRing,
        bodies: IncomingBodies,
        most: int,
    ) -> None:
        self._app = app
        self._steps = steps
        self._tasks = tasks
        self._match = RouteMatch(ModelInferRoute(messages))
        self._keys = keys
        self._bodies = bodies
        self._most = most

    async def infer(self, message: bytes, headers: Headers) -> HttpReply:
        """Return the answer to a `ModelInferRequest`. `headers` are those of the caller."""
        return await self.post(self._match, message, headers)

    async def post(self, match: RouteMatch, body: bytes, headers: Headers) -> HttpReply:
        """Return the answer of an inference route. `headers` are those of the caller."""
        return await self._start(lambda: self._post(match, body, headers))

    async def ask(self, call: ApplicationRequest, headers: Headers) -> HttpReply:
        """Return the application's answer. `headers` are those of the caller."""
        return await self._start(lambda: _ask(self._app, call, _with_own(headers, call.body)))

    async def _start(self, call: Callable[[], Coroutine[Any, Any, HttpReply]]) -> HttpReply:
        if len(self._tasks) >= self._most:
            return _BUSY
        task = self._tasks.create_task(call())
        task.add_done_callback(ignore_outcome)
        return await asyncio.shield(task)

    async def _post(self, match: RouteMatch, message: bytes, headers: Headers) -> HttpReply:
        route = match.route
        path = route.path.format(**dict(zip(route.names, match.parameters, strict=True)))
        request = IncomingRequest(
            "POST",
            path,
            _with_own(headers, message),
            keys=self._keys,
            target=quote(path).encode() + b"?",
        )
        found: list[HttpReply] = []

        async def on_reply(reply: HttpReply, _: KeyId | None) -> None:
            found.append(reply)

        body = IncomingBody(self._bodies, _receive_of(message))
        await self._steps.answer(match, request, body, on_reply)
        return found[0]


async def _ask(app: ASGIApp, request: ApplicationRequest, fields: Headers) -> HttpReply:
    """Return the answer of `app`."""
    status, headers, chunks = 500, Headers(), list[bytes]()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            chunks.append(message["body"])

    await app(_scope(request, fields), _receive_of(request.body), send)
    lines = header_lines([(name.lower(), value) for name, value in headers])
    return HttpReply(status, lines, b"".join(chunks))


def _receive_of(body: bytes) -> Receive:
    """Return what gives `body` as ASGI does; nobody disconnects meanwhile."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Future()

    return receive


def _with_own(headers: Headers, body: bytes) -> Headers:
    return [(b"host", b"grpc"), *headers, (b"content-length", b"%d" % len(body))]


def _scope(request: ApplicationRequest, headers: Headers) -> Any:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }
