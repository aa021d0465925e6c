"""Calls backends over HTTP: what is sent, and what comes back as reports or failures."""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Literal, Self

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
from gateway.errors import Overloaded
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from gateway.tasks import TaskScope
from gateway.types import BackendId, Endpoint
from gateway.upstream.base import (
    CallFailed,
    Cause,
    Receive,
    Transport,
    TransportResponse,
)
from gateway.upstream.shared_call import SharedCall
from gateway.upstream.tls import LOOK_INTERVAL, ClientTls, TlsFiles, follow_files
from gateway.upstream.transport import BackendTransport, TransportError, locate

# A backend that works already gets what comes in this time, in seconds, as one call (as Nagle's
# algorithm does with bytes); one that is idle gets the first item at once.
GATHERING = 0.002
MAX_REFUSAL_BYTES = 64 * 1024
MAX_STATE_BYTES = 4 * 1024 * 1024

# What calls that travel together have in common.
Like = tuple[str, str, str, Task, bytes, str, bool]

_call_encoder = msgspec.msgpack.Encoder()
_refusal_decoder = msgspec.msgpack.Decoder(Refusal)
_state_decoder = msgspec.msgpack.Decoder(BackendState)


class _Lane:
    """What calls to one backend share: prepared heads, and a bound on calls at a time."""

    def __init__(self, endpoint: Endpoint, limit: int, token: bytes) -> None:
        self.place = _place(endpoint)
        self.limit = limit
        self.origin, host, path = locate(endpoint.url, endpoint.server_name)
        common = b" HTTP/1.1\r\nhost: %b\r\ncontent-type: %b\r\n" % (host, MEDIA_TYPE.encode())
        if token:
            common += b"%b: %b\r\n" % (TOKEN_HEADER.encode(), token)
        self.call_head = b"POST %b%b%b" % (path, CALL_PATH.encode(), common)
        self.state_head = b"GET %b%b%b" % (path, STATE_PATH.encode(), common)
        self.reload_head = b"POST %b%b%b" % (path, RELOAD_PATH.encode(), common)
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
    """`BackendClient` over HTTP and TLS. One a process, entered before use.

    The files of `tls` are looked at each `look_interval` seconds, and used when they are new.
    """

    def __init__(
        self,
        *,
        token: str = "",
        tls: ClientTls | None = None,
        look_interval: float = LOOK_INTERVAL,
        tcp_keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
    ) -> None:
        self._token = token.encode()
        self._tls = tls or ClientTls(TlsFiles())
        self._look_interval = look_interval
        self._tcp_keepalive = tcp_keepalive
        self._tasks = TaskScope()
        self._lanes: dict[BackendId, _Lane] = {}
        self._routing = RoutingEntry()
        self._transports: dict[str, Transport] = {}
        self._transport = self._transport_of(self._routing.client)

    async def __aenter__(self) -> Self:
        if self._tls.has_files:
            # Read before the first call: it must not find them broken.
            await asyncio.to_thread(self._tls.renew)
            self._tasks.start(follow_files(self._tls, self._look_interval))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)
        for transport in self._transports.values():
            await transport.aclose()

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingEntry) -> None:
        """Use the bounds and the client of `routing`; drop what was kept for endpoints that left.

        Calls in flight end with the client that they began with.
        """
        self._routing = routing
        self._transport = self._transport_of(routing.client)
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
        """See `BackendClient.call`. Like calls of about the same time travel as one.

        An atomic one travels alone, so that the backend hears when it is given up.
        """
        lane = self._lane(endpoint)
        shared = self._send_alone(lane, call) if call.atomic else self._gather(lane, call)
        part = shared.join(call, receive, deadline=deadline, patience=patience)
        return await part.outcome

    async def state(self, endpoint: Endpoint, *, patience: float) -> BackendState:
        """See `BackendClient.state`."""
        lane = self._lane(endpoint)
        return await self._tasks.run(self._ask_state(lane, patience, lane.state_head))

    async def reload(self, endpoint: Endpoint, *, patience: float) -> BackendState:
        """Have the backend read its repository again; see `ReloadClient.reload`."""
        lane = self._lane(endpoint)
        return await self._tasks.run(self._ask_state(lane, patience, lane.reload_head))

    def _gather(self, lane: _Lane, call: Call) -> SharedCall:
        """Return the call that the items of `call` may join."""
        like = (
            *(call.model, call.revision, call.profile, call.task, call.parameters, call.lane),
            call.truncate,
        )
        shared = lane.departing.get(like)
        if shared is None or not shared.has_room(call):
            shared = lane.departing[like] = SharedCall(call)
            loop = asyncio.get_running_loop()
            if lane.travelling:
                loop.call_later(GATHERING, self._depart, lane, like, shared)
            else:
                loop.call_soon(self._depart, lane, like, shared)
        return shared

    def _send_alone(self, lane: _Lane, call: Call) -> SharedCall:
        shared = SharedCall(call)
        asyncio.get_running_loop().call_soon(self._start, lane, shared)
        return shared

    def _depart(self, lane: _Lane, like: Like, shared: SharedCall) -> None:
        if lane.departing.get(like) is shared:
            del lane.departing[like]
        self._start(lane, shared)

    def _start(self, lane: _Lane, shared: SharedCall) -> None:
        if shared.is_wanted:
            task = self._tasks.create_task(self._travel(lane, shared))
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
        reply = _Reply(shared.take)
        failure = CallFailed(Cause.CUT, "the backend's answer ended too early")
        try:
            await self._converse(lane, shared, reply)
        except CallFailed as error:
            failure = error
        else:
            if reply.ends_with is not None:
                return reply.ends_with
        if reply.ends_with is None or not shared.is_answered:
            raise failure
        # Once everything is here, how the connection ended does not matter.
        return reply.ends_with

    async def _converse(self, lane: _Lane, shared: SharedCall, reply: _Reply) -> None:
        """Send the call, and feed its answer to `reply` until it ends."""
        loop = asyncio.get_running_loop()
        deadline, patience = shared.deadline, shared.patience
        response: TransportResponse | None = None
        is_sent = False
        try:
            async with (
                asyncio.timeout_at(min(deadline, loop.time() + patience)) as scope,
                lane.slots,
            ):
                # Anew from here: that it has many calls already is no silence of the backend.
                scope.reschedule(min(deadline, loop.time() + patience))
                is_sent = True
                body = _call_encoder.encode(shared.call_at(loop.time()))
                response = await self._send(lane, lane.call_head, body)
                if response.status != HTTPStatus.OK:
                    raise _refused(response.status, await _body(response, MAX_REFUSAL_BYTES))
                while chunk := await response.read():
                    scope.reschedule(min(deadline, loop.time() + patience))
                    reply.feed(chunk)
        except TimeoutError as error:
            if not is_sent:
                raise _crowded() from error
            raise CallFailed(Cause.TIMED_OUT, "the backend did not answer in time") from error
        except TransportError as error:
            raise _lost(error, response) from error
        finally:
            if response is not None:
                response.close()

    async def _ask_state(self, lane: _Lane, patience: float, head: bytes) -> BackendState:
        response: TransportResponse | None = None
        try:
            async with asyncio.timeout(patience):
                response = await self._send(lane, head, b"")
                body = await _body(response, MAX_STATE_BYTES)
            if response.status != HTTPStatus.OK:
                raise _refused(response.status, body)
            return _state_decoder.decode(body)
        except TimeoutError as error:
            raise CallFailed(Cause.TIMED_OUT, "the backend did not answer in time") from error
        except TransportError as error:
            raise _lost(error, response) from error
        except UNREADABLE as error:
            raise CallFailed(Cause.CUT, "the backend's state cannot be read") from error
        finally:
            if response is not None:
                response.close()

    def _transport_of(self, client: Literal["native", "httpx"]) -> Transport:
        if client not in self._transports:
            self._transports[client] = _transport(client, self._tls, self._tcp_keepalive)
        return self._transports[client]

    async def _send(self, lane: _Lane, head: bytes, body: bytes) -> TransportResponse:
        patience = self._routing.connect_timeout
        return await self._transport.send(lane.origin, head, body, patience=patience)

    def _lane(self, endpoint: Endpoint) -> _Lane:
        lane = self._lanes.get(endpoint.backend)
        limit = self._routing.max_calls_per_backend
        if lane is None or lane.place != _place(endpoint) or lane.limit != limit:
            try:
                lane = self._lanes[endpoint.backend] = _Lane(endpoint, limit, self._token)
            except ValueError as error:
                raise CallFailed(Cause.UNREACHABLE, "the backend's URL is not one") from error
        return lane


def _transport(
    client: Literal["native", "httpx"], tls: ClientTls, tcp_keepalive: TcpKeepalive
) -> Transport:
    if client == "native":
        return BackendTransport(tls=tls, tcp_keepalive=tcp_keepalive)
    # Importing httpx takes 100 ms and 9 MB, which few workers need.
    from gateway.upstream.httpx_transport import HttpxTransport  # noqa: PLC0415

    return HttpxTransport(tls=tls, tcp_keepalive=tcp_keepalive)


def _place(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.url, endpoint.server_name


def _crowded() -> CallFailed:
    detail = "the backend has as many calls as it may have"
    return CallFailed(Cause.REFUSED, detail, status=503, code=Overloaded.code)


def _lost(error: TransportError, response: TransportResponse | None) -> CallFailed:
    if response is None:
        return CallFailed(Cause.UNREACHABLE, f"the backend cannot be reached ({error})")
    return CallFailed(Cause.CUT, f"the backend closed the connection in its answer ({error})")


async def _body(response: TransportResponse, limit: int) -> bytes:
    body = bytearray()
    while chunk := await response.read():
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
