"""Sends calls to backends over HTTP, and decodes the responses."""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Literal, Self, TypeVar

import msgspec

from gateway.config.document import RoutingConfig
from gateway.errors import Overloaded
from gateway.sockets.certificate_files import LOOK_INTERVAL, follow_files
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from gateway.tasks import TaskScope
from gateway.types import BackendId, Endpoint
from gateway.upstream.base import (
    CallFailed,
    Cause,
    OnEnd,
    Receive,
    Transport,
    TransportError,
    TransportResponse,
    locate,
)
from gateway.upstream.exchange import (
    MAX_REFUSAL_BYTES,
    CallExchange,
    check_size,
    explain_failure,
    refused,
)
from gateway.upstream.tls import ClientTls
from gateway.upstream.transport import BackendTransport
from wire.plans import ASSIGNMENT_PATH, Assignment, PlanTrial, ServingPlans
from wire.protocol import (
    CALL_PATH,
    CHECK_PATH,
    MEDIA_TYPE,
    RELOAD_PATH,
    STATE_PATH,
    TOKEN_HEADER,
    UNREADABLE,
    Call,
    PlanVerdict,
    ServingState,
)

T = TypeVar("T")

MAX_STATE_BYTES = 4 * 1024 * 1024

_call_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(ServingState)
_verdict_decoder = msgspec.msgpack.Decoder(PlanVerdict)


class _Slots:
    """Bounds concurrent calls. A slot that is free is taken at once, others in turn."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free; `release` gives it back."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Take a slot once one is free."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # a slot came at the same moment
                self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Give a slot to who waits for the longest time, or free it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class _Channel:
    """Holds what calls to one backend share: request heads, and a bound on concurrent calls."""

    def __init__(self, endpoint: Endpoint, limit: int, token: bytes) -> None:
        self.address = (endpoint.url, endpoint.server_name)
        self.limit = limit
        self.origin, host, path = locate(endpoint.url, endpoint.server_name)
        common = b" HTTP/1.1\r\nhost: %b\r\ncontent-type: %b\r\n" % (host, MEDIA_TYPE.encode())
        if token:
            common += b"%b: %b\r\n" % (TOKEN_HEADER.encode(), token)
        self.call_head = b"POST %b%b%b" % (path, CALL_PATH.encode(), common)
        self.state_head = b"GET %b%b%b" % (path, STATE_PATH.encode(), common)
        self.reload_head = b"POST %b%b%b" % (path, RELOAD_PATH.encode(), common)
        self.check_head = b"POST %b%b%b" % (path, CHECK_PATH.encode(), common)
        self.assignment_head = b"POST %b%b%b" % (path, ASSIGNMENT_PATH.encode(), common)
        self.slots = _Slots(limit)


class HttpBackendClient:
    """Implements `BackendClient` over HTTP and TLS. One per process, entered before use.

    The files of `tls` are checked every `look_interval` seconds, and read again when they changed.
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
        # Tells its clock from those of others.
        self._sender = secrets.randbits(48) or 1
        self._tls = tls or ClientTls()
        self._look_interval = look_interval
        self._tcp_keepalive = tcp_keepalive
        self._tasks = TaskScope()
        self._exchanges: set[CallExchange] = set()
        self._channels: dict[BackendId, _Channel] = {}
        self._routing = RoutingConfig()
        self._transports: dict[str, Transport] = {}
        self._transport = self._transport_of(self._routing.client)

    async def __aenter__(self) -> Self:
        if self._tls.has_files:
            # Read before the first call: it must not find them broken.
            await asyncio.to_thread(self._tls.renew)
            self._tasks.start(follow_files(self._tls.renew, self._look_interval))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._tasks.__aexit__(None, None, None)
        for exchange in tuple(self._exchanges):
            exchange.close()
        for transport in self._transports.values():
            await transport.aclose()

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        """Use the bounds and the client of `routing`; drop what was kept for endpoints that left.

        Calls in flight end with the client that they began with.
        """
        self._routing = routing
        self._transport = self._transport_of(routing.client)
        staying = {endpoint.backend for endpoint in endpoints}
        self._channels = {
            name: channel for name, channel in self._channels.items() if name in staying
        }

    def start_call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
        on_end: OnEnd,
    ) -> CallExchange:
        """See `BackendClient.start_call`."""
        channel = self._channel(endpoint)
        exchange = CallExchange(
            call, deadline=deadline, idle_timeout=idle_timeout, receive=receive, on_end=on_end
        )
        if not self._send_now(channel, exchange):
            task = self._tasks.create_task(self._run_call(channel, exchange))
            exchange.on_cancel(task.cancel)
        return exchange

    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        """See `BackendClient.state`."""
        channel = self._channel(endpoint)
        fetching = self._fetch(channel, time_limit, channel.state_head, b"", _state_decoder)
        return await self._tasks.run(fetching)

    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.reload`."""
        channel, body = self._channel(endpoint), _call_encoder.encode(plans)
        fetching = self._fetch(channel, time_limit, channel.reload_head, body, _state_decoder)
        return await self._tasks.run(fetching)

    async def assign(
        self, endpoint: Endpoint, assignment: Assignment, *, time_limit: float
    ) -> ServingState:
        """Have a backend serve other models; see `AssignmentClient`."""
        channel, body = self._channel(endpoint), _call_encoder.encode(assignment)
        head = channel.assignment_head
        return await self._tasks.run(self._fetch(channel, time_limit, head, body, _state_decoder))

    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        """See `BackendClient.check`."""
        channel, body = self._channel(endpoint), _call_encoder.encode(trial)
        fetching = self._fetch(channel, time_limit, channel.check_head, body, _verdict_decoder)
        return await self._tasks.run(fetching)

    def _send_now(self, channel: _Channel, exchange: CallExchange) -> bool:
        """Send a call over a kept connection; `False` where none, or no slot, is free."""
        if not channel.slots.take():
            return False
        try:
            body = self._encode(exchange)
            sent = self._transport.send_nowait(
                channel.origin, channel.call_head, body, exchange.note_change
            )
        except BaseException:  # whatever it is, the slot is free again
            channel.slots.release()
            raise
        if sent is None:
            channel.slots.release()
            return False
        self._exchanges.add(exchange)
        exchange.follow(sent, partial(self._exchange_over, channel))
        return True

    def _encode(self, exchange: CallExchange) -> bytes:
        return _call_encoder.encode(exchange.message(self._sender))

    def _exchange_over(self, channel: _Channel, exchange: CallExchange) -> None:
        channel.slots.release()
        self._exchanges.discard(exchange)

    async def _run_call(self, channel: _Channel, exchange: CallExchange) -> None:
        try:
            await self._stream_reply(channel, exchange)
            exchange.end()
        except CallFailed as error:
            exchange.end(error)
        except BaseException as error:
            # Whatever ends this task, the caller may not go on waiting for it.
            exchange.end(error)
            raise

    async def _stream_reply(self, channel: _Channel, exchange: CallExchange) -> None:
        """Send the call, and deliver the frames of its answer until it ends."""
        response: TransportResponse | None = None
        has_slot = False
        try:
            async with asyncio.timeout_at(exchange.silent_at()) as scope:
                if not channel.slots.take():
                    await channel.slots.wait()
                    # From here anew: waiting for a free slot is not silence of the backend.
                    scope.reschedule(exchange.silent_at())
                has_slot = True
                body = self._encode(exchange)
                response = await self._send(channel, channel.call_head, body)
                await _deliver(response, exchange, scope)
        except TimeoutError as error:
            if not has_slot:
                detail = "the backend has the maximum number of calls in flight"
                refused = CallFailed(Cause.REFUSED, detail, status=503, code=Overloaded.code)
                raise refused from error
            raise CallFailed(Cause.TIMED_OUT, "the backend did not answer in time") from error
        except TransportError as error:
            raise explain_failure(error, has_begun=response is not None) from error
        finally:
            if has_slot:
                channel.slots.release()
            if response is not None:
                response.close()

    async def _fetch(
        self,
        channel: _Channel,
        time_limit: float,
        head: bytes,
        content: bytes,
        decoder: msgspec.msgpack.Decoder[T],
    ) -> T:
        response: TransportResponse | None = None
        try:
            async with asyncio.timeout(time_limit):
                response = await self._send(channel, head, content)
                body = await _body(response, MAX_STATE_BYTES)
            if response.status != HTTPStatus.OK:
                raise refused(response.status, body)
            return decoder.decode(body)
        except TimeoutError as error:
            raise CallFailed(Cause.TIMED_OUT, "the backend did not answer in time") from error
        except TransportError as error:
            raise explain_failure(error, has_begun=response is not None) from error
        except UNREADABLE as error:
            raise CallFailed(Cause.CUT, "the backend's answer cannot be read") from error
        finally:
            if response is not None:
                response.close()

    def _transport_of(self, client: Literal["native", "httpx"]) -> Transport:
        if client not in self._transports:
            tls, tcp_keepalive = self._tls, self._tcp_keepalive
            if client == "native":
                self._transports[client] = BackendTransport(tls=tls, tcp_keepalive=tcp_keepalive)
            else:
                # Importing httpx takes 100 ms and 9 MB, which few workers need.
                from gateway.upstream.httpx_transport import HttpxTransport  # noqa: PLC0415

                self._transports[client] = HttpxTransport(tls=tls, tcp_keepalive=tcp_keepalive)
        return self._transports[client]

    async def _send(self, channel: _Channel, head: bytes, body: bytes) -> TransportResponse:
        return await self._transport.send(
            channel.origin, head, body, connect_timeout=self._routing.connect_timeout
        )

    def _channel(self, endpoint: Endpoint) -> _Channel:
        channel = self._channels.get(endpoint.backend)
        limit = self._routing.max_calls_per_backend
        address = (endpoint.url, endpoint.server_name)
        if channel is None or channel.address != address or channel.limit != limit:
            try:
                channel = self._channels[endpoint.backend] = _Channel(endpoint, limit, self._token)
            except ValueError as error:
                raise CallFailed(Cause.UNREACHABLE, "the backend's URL is not one") from error
        return channel


async def _deliver(
    response: TransportResponse, exchange: CallExchange, scope: asyncio.Timeout
) -> None:
    """Deliver the frames of a response as they arrive."""
    if response.status != HTTPStatus.OK:
        raise refused(response.status, await _body(response, MAX_REFUSAL_BYTES))
    while chunk := await response.read():
        exchange.feed(chunk)
        if response.is_read:
            return
        scope.reschedule(exchange.silent_at())


async def _body(response: TransportResponse, limit: int) -> bytes:
    body = bytearray()
    while chunk := await response.read():
        body += chunk
        check_size(len(body), limit)
    return bytes(body)
