"""Holds a request on its way to the core or to Litestar: its head, and its body as that arrives."""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final

from litestar.types import (
    HTTPReceiveMessage,
    HTTPRequestEvent,
    HTTPScope,
    Receive,
    WebSocketReceiveMessage,
)

from sluicegate.gateway.api.http import (
    ClientDisconnected,
    Headers,
    bounded,
    headers_by_name,
    too_large,
)
from sluicegate.gateway.api.request_headers import parse_timeout
from sluicegate.gateway.auth.bearer import api_key
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.config.document import DeadlineConfig
from sluicegate.gateway.errors import GatewayError, InvalidRequest, RequestTimeout
from sluicegate.gateway.http.byte_budget import ByteBudget, HeldBytes
from sluicegate.gateway.http.request_head import CallerId, echo_line, parse_caller_id
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.types import Principal, RequestId

INCOMING: Final = "sluicegate_incoming"
"""The key in the state of a scope that has the `IncomingRequest`."""
_LONGEST_NUMBER: Final = 18
_MAX_LARGE_BODIES: Final = 16
_LEAST_TIME: Final = 0.1
"""Seconds that a body may take to arrive, even if the request has less. Many clients send it in a
packet of its own. A request with a shorter deadline fails with `deadline_exceeded`."""


class IncomingRequest:
    """What a caller sent. The steps before the work read it, and note in it what they decide.

    `path` is decoded, `target` is the path and the query as they were sent. Names of `headers` are
    in lower case.
    """

    added_lines = b""
    """The header lines that the steps add to the answer."""
    has_secret_answer = False
    """Whether the answer holds a secret, so that it is stored nowhere."""
    recorded_id: RequestId | None = None
    """The id under which the ledger counts all attempts of the request, if that is not its own."""
    deadline = inf
    """When it must be answered (the loop's time), once a step has read its body ahead."""

    def __init__(
        self, method: str, path: str, headers: Headers, *, keys: KeyRing, target: bytes = b""
    ) -> None:
        self.method = method
        self.path = path
        self.target = target
        self._keys = keys
        self.set_headers(headers)
        self.key = api_key(self.fields.get(b"authorization", b""))
        """The API key, empty if there is none or more than one."""

    def set_headers(self, headers: Headers) -> None:
        """Replace the headers."""
        self.headers = headers
        self.fields = headers_by_name(headers)
        """The first value of each header."""

    @property
    def principal(self) -> Principal | None:
        """Whose key it is now: a key may be revoked while the body arrives."""
        return self._keys.find(self.key)

    def refusal(self) -> GatewayError:
        """Return the error of a request whose key is not valid."""
        return self._keys.refusal(self.key)

    @property
    def caller_id(self) -> CallerId:
        """The caller's own id of the request; empty if there is none."""
        return parse_caller_id(self.fields)

    @property
    def id_line(self) -> bytes:
        """The header line of answers that repeats `caller_id`; empty if there is none."""
        return echo_line(self.caller_id)


def request_of(scope: HTTPScope, keys: KeyRing) -> IncomingRequest:
    """Return the request that an ASGI server received."""
    return IncomingRequest(
        scope["method"],
        scope["path"],
        list(scope["headers"]),
        keys=keys,
        target=scope["raw_path"] + b"?" + scope["query_string"],
    )


class IncomingBodies:
    """Bounds the memory of the bodies that a worker waits for: there is room for 16 of the largest.

    One per worker.
    """

    def __init__(self) -> None:
        # Bodies never wait for room.
        self.budget = ByteBudget(0, what="Large bodies", clock=time.monotonic)


class IncomingBody:
    """The body of one request. A step may read it ahead of the code that answers the request.

    `receive` gives the next part as ASGI does. `take_whole` returns the body if it is all there,
    and `None` if it has to be waited for.
    """

    def __init__(
        self,
        bodies: IncomingBodies,
        receive: Receive,
        take_whole: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._bodies = bodies
        self._receive = receive
        self._take_whole = take_whole
        self._held: HeldBytes | None = None
        self._is_ahead = False
        """Whether `content` was read and not given to who answers."""
        self.is_whole = False
        self.content = b""

    async def read_ahead(self, request: IncomingRequest, runtime: Runtime) -> None:
        """Read the body up to the document's bound, and keep it in `content`.

        The rest of a longer body, such as an uploaded file, is left to who answers the request.

        Raises:
            Overloaded: there are too many large bodies.
            RequestTimeout: the body did not arrive in time.
            ClientDisconnected: the caller is gone.
        """
        if not self._is_ahead:
            allowed = _allowed(request, runtime.document.deadline)
            request.deadline = asyncio.get_running_loop().time() + allowed
            await self._read_until(request.deadline, request, runtime)

    async def read(self, request: IncomingRequest, runtime: Runtime, deadline: float) -> bytes:
        """Return the whole body.

        Raises:
            PayloadTooLarge: it is longer than the document allows.
            Overloaded: there are too many large bodies.
            RequestTimeout: the body did not arrive by `deadline`.
            ClientDisconnected: the caller is gone.
        """
        limit = runtime.document.request.max_body_bytes
        if not self._is_ahead:
            raw = self._take_whole()
            if raw is not None:
                return bounded(raw, limit=limit)
            await self._read_until(deadline, request, runtime)
        if not self.is_whole:
            raise too_large(limit)
        return bounded(self.content, limit=limit)

    async def _read_until(
        self, deadline: float, request: IncomingRequest, runtime: Runtime
    ) -> None:
        principal, limit = request.principal, runtime.document.request.max_body_bytes
        if principal is None:
            raise request.refusal()
        budget = self._bodies.budget
        budget.limit_bytes = _MAX_LARGE_BODIES * limit
        self._held = HeldBytes(budget, principal.key)
        least = asyncio.get_running_loop().time() + _LEAST_TIME
        try:
            async with asyncio.timeout_at(max(deadline, least)):
                await self._read_up_to(limit, request, self._held)
        except TimeoutError as error:
            raise RequestTimeout(
                "The body did not arrive in time; send it faster, or ask for more with"
                " `X-Request-Timeout`."
            ) from error
        self._is_ahead = True

    async def _read_up_to(self, limit: int, request: IncomingRequest, held: HeldBytes) -> None:
        declared = request.fields.get(b"content-length", b"")
        size = int(declared) if declared.isdigit() and len(declared) <= _LONGEST_NUMBER else 0
        chunks: list[bytes] = []
        arrived = 0
        while size <= limit and not self.is_whole:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            chunks.append(message["body"])
            arrived += len(message["body"])
            size = arrived
            if size <= limit:
                held.grow(size)
            self.is_whole = not message.get("more_body")
        self.content = b"".join(chunks)

    def replace(self, content: bytes) -> None:
        """Put `content` in the place of what was read ahead.

        Raises:
            Overloaded: there are too many large bodies.
        """
        if self._held is not None:
            self._held.grow(len(content))
        self.content = content

    async def receive(self) -> HTTPReceiveMessage | WebSocketReceiveMessage:
        """Return the next part of the body for who answers the request."""
        if not self._is_ahead:
            return await self._receive()
        self._is_ahead = False
        return HTTPRequestEvent(type="http.request", body=self.content, more_body=not self.is_whole)

    def release(self) -> None:
        """Release the memory that the body holds."""
        self.content = b""
        if self._held is not None:
            self._held.release()


def _allowed(request: IncomingRequest, deadline: DeadlineConfig) -> float:
    """Return how many seconds the request has."""
    try:
        return parse_timeout(request.fields.get(b"x-request-timeout"), deadline)
    except InvalidRequest:
        return deadline.default  # who answers the request refuses it
