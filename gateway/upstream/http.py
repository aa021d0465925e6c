"""Calls backends over HTTP; the only module that knows the HTTP client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import httpx
import msgspec

from backends.protocol import (
    CALL_PATH,
    MEDIA_TYPE,
    RELOAD_PATH,
    STATE_PATH,
    TOKEN_HEADER,
    UNREADABLE,
    BackendState,
    Call,
    Frame,
    FrameReader,
    Refusal,
    Report,
    Task,
)
from gateway.config.document import RoutingEntry
from gateway.types import BackendId, Endpoint
from gateway.upstream.base import CallFailed, Cause, Receive
from gateway.upstream.shared_call import SharedCall
from gateway.upstream.tasks import OwnedTasks
from gateway.upstream.transport import BackendTransport

# Larger bodies are sent in pieces, so that none of them holds the loop for long.
PIECE_BYTES = 256 * 1024
# A backend that works already gets what comes in this time, in seconds, as one call (as Nagle's
# algorithm does with bytes); one that is idle gets the first item at once.
GATHERING = 0.002
MAX_REFUSAL_BYTES = 64 * 1024
MAX_STATE_BYTES = 4 * 1024 * 1024

# What calls that travel together have in common.
Like = tuple[str, str, str, Task, bytes, str]

_call_encoder = msgspec.msgpack.Encoder()
_refusal_decoder = msgspec.msgpack.Decoder(Refusal)
_state_decoder = msgspec.msgpack.Decoder(BackendState)


class _Lane:
    """What calls to one backend share: prepared URLs, and a bound on calls at a time."""

    def __init__(self, url: str, limit: int) -> None:
        base = url.rstrip("/")
        self.url = url
        self.limit = limit
        self.call_url = httpx.URL(base + CALL_PATH)
        self.state_url = httpx.URL(base + STATE_PATH)
        self.reload_url = httpx.URL(base + RELOAD_PATH)
        self.host = self.call_url.netloc
        self.slots = asyncio.Semaphore(limit)
        self.departing: dict[Like, SharedCall] = {}
        self.travelling = 0


class _Reply:
    """The frames of one answer, passed on; `ends_with` is the report it ended with, so far."""

    def __init__(self, receive: Callable[[Frame], None]) -> None:
        self._frames = FrameReader()
        self._receive = receive
        self.ends_with: Report | None = None

    def feed(self, chunk: bytes) -> None:
        try:
            for frame in self._frames.feed(chunk):
                self.ends_with = frame if isinstance(frame, Report) else None
                self._receive(frame)
        except msgspec.DecodeError as error:
            raise CallFailed(Cause.CUT, "the backend's answer cannot be read") from error


class HttpBackendClient:
    """`BackendClient` over HTTP. One a process, entered before use."""

    def __init__(
        self, *, token: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._token = token.encode()
        self._transport = transport or BackendTransport()
        self._tasks = OwnedTasks()
        self._lanes: dict[BackendId, _Lane] = {}
        self._routing = RoutingEntry()
        self._timeouts = {"timeout": httpx.Timeout(None).as_dict()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)
        await self._transport.aclose()

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingEntry) -> None:
        """Use the bounds of `routing`; what was kept for endpoints that left is dropped."""
        self._routing = routing
        self._timeouts = {"timeout": httpx.Timeout(None, connect=routing.connect_timeout).as_dict()}
        staying = {endpoint.backend for endpoint in endpoints}
        self._lanes = {name: lane for name, lane in self._lanes.items() if name in staying}

    async def call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        patience: float,
        receive: Receive,
    ) -> Report:
        """See `BackendClient.call`. Like calls of about the same time travel as one."""
        shared = self._gather(self._lane(endpoint), call)
        part = shared.join(call, receive, deadline=deadline, patience=patience)
        return await part.outcome

    async def state(self, endpoint: Endpoint, *, patience: float) -> BackendState:
        """See `BackendClient.state`."""
        lane = self._lane(endpoint)
        return await self._tasks.run(self._ask_state(lane, patience, "GET", lane.state_url))

    async def reload(self, endpoint: Endpoint, *, patience: float) -> BackendState:
        """Have the backend read its repository again; see `ReloadClient.reload`."""
        lane = self._lane(endpoint)
        return await self._tasks.run(self._ask_state(lane, patience, "POST", lane.reload_url))

    def _gather(self, lane: _Lane, call: Call) -> SharedCall:
        """Return the call that the items of `call` may join."""
        like = (call.model, call.revision, call.profile, call.task, call.parameters, call.lane)
        shared = lane.departing.get(like)
        if shared is None or not shared.has_room(call):
            shared = lane.departing[like] = SharedCall(call)
            loop = asyncio.get_running_loop()
            if lane.travelling:
                loop.call_later(GATHERING, self._depart, lane, like, shared)
            else:
                loop.call_soon(self._depart, lane, like, shared)
        return shared

    def _depart(self, lane: _Lane, like: Like, shared: SharedCall) -> None:
        if lane.departing.get(like) is shared:
            del lane.departing[like]
        if shared.is_wanted:
            task = self._tasks.start(self._travel(lane, shared))
            shared.when_unwanted(task.cancel)

    async def _travel(self, lane: _Lane, shared: SharedCall) -> None:
        lane.travelling += 1
        try:
            shared.end(await self._exchange(lane, shared))
        except CallFailed as error:
            shared.fail(error)
        except BaseException as error:
            # Whatever ends this task, nobody may go on waiting for it.
            shared.fail(error)
            raise
        finally:
            lane.travelling -= 1

    async def _exchange(self, lane: _Lane, shared: SharedCall) -> Report:
        loop = asyncio.get_running_loop()
        deadline, patience = shared.deadline, shared.patience
        body = _call_encoder.encode(shared.call)
        request = self._request("POST", lane.call_url, lane, body)
        reply = _Reply(shared.take)
        failure = CallFailed(Cause.CUT, "the backend's answer ended too early")
        try:
            async with (
                asyncio.timeout_at(min(deadline, loop.time() + patience)) as scope,
                lane.slots,
                self._response(request) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise _refused(response.status_code, await _body(response, MAX_REFUSAL_BYTES))
                async for chunk in _chunks(response):
                    scope.reschedule(min(deadline, loop.time() + patience))
                    reply.feed(chunk)
        except TimeoutError:
            failure = CallFailed(Cause.TIMED_OUT, "the backend did not answer in time")
        except CallFailed as error:
            failure = error
        else:
            if reply.ends_with is not None:
                return reply.ends_with
        if reply.ends_with is None or not shared.is_answered:
            raise failure
        # Once everything is here, how the connection ended does not matter.
        return reply.ends_with

    async def _ask_state(
        self, lane: _Lane, patience: float, method: str, url: httpx.URL
    ) -> BackendState:
        request = self._request(method, url, lane, b"")
        try:
            async with asyncio.timeout(patience), self._response(request) as response:
                body = await _body(response, MAX_STATE_BYTES)
                if response.status_code != httpx.codes.OK:
                    raise _refused(response.status_code, body)
                return _state_decoder.decode(body)
        except TimeoutError as error:
            raise CallFailed(Cause.TIMED_OUT, "the backend did not answer in time") from error
        except UNREADABLE as error:
            raise CallFailed(Cause.CUT, "the backend's state cannot be read") from error

    @asynccontextmanager
    async def _response(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Send `request`; whatever the HTTP client raises, then or while reading, is mapped."""
        cause = Cause.UNREACHABLE
        try:
            # Not through `AsyncClient`: redirects, authentication and cookies, of which backends
            # know nothing, cost it a quarter of the call.
            response = await self._transport.handle_async_request(request)
            cause = Cause.CUT
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.HTTPError, OSError) as error:
            detail = f"the backend {_SAYS[cause]} ({type(error).__name__})"
            raise CallFailed(cause, detail) from error

    def _request(self, method: str, url: httpx.URL, lane: _Lane, body: bytes) -> httpx.Request:
        headers = [
            (b"host", lane.host),
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        if self._token:
            headers.append((TOKEN_HEADER.encode(), self._token))
        content = body if len(body) <= PIECE_BYTES else _pieces(body)
        return httpx.Request(
            method, url, headers=headers, content=content, extensions=self._timeouts
        )

    def _lane(self, endpoint: Endpoint) -> _Lane:
        lane = self._lanes.get(endpoint.backend)
        limit = self._routing.max_calls_per_backend
        if lane is None or lane.url != endpoint.url or lane.limit != limit:
            try:
                lane = self._lanes[endpoint.backend] = _Lane(endpoint.url, limit)
            except httpx.InvalidURL as error:
                raise CallFailed(Cause.UNREACHABLE, "the backend's URL is not one") from error
        return lane


_SAYS = {
    Cause.UNREACHABLE: "cannot be reached",
    Cause.CUT: "closed the connection in its answer",
}


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    if not isinstance(response.stream, httpx.AsyncByteStream):
        raise TypeError(response.stream)
    return aiter(response.stream)


async def _body(response: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in _chunks(response):
        body += chunk
        if len(body) > limit:
            raise CallFailed(Cause.CUT, f"the backend's answer is over {limit} bytes")
    return bytes(body)


def _refused(status: int, body: bytes) -> CallFailed:
    try:
        refusal = _refusal_decoder.decode(body)
    except UNREADABLE:
        # Something in between answered, or no backend of ours.
        return CallFailed(Cause.CUT, f"the backend answered with status {status}")
    return CallFailed(
        Cause.REFUSED,
        refusal.detail,
        status=status,
        code=refusal.code,
        retryable=refusal.retryable,
        retry_after=refusal.retry_after,
    )
