"""Sends calls to backends over HTTP, and decodes the responses."""

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Literal, Self, TypeVar

import msgspec

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.sockets.certificate_files import LOOK_INTERVAL, follow_files
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from sluicegate.gateway.tasks import TaskScope
from sluicegate.gateway.types import BackendId, Endpoint
from sluicegate.gateway.upstream.base import (
    CallFailed,
    Cause,
    ConnectTimeout,
    OnEnd,
    Receive,
    Response,
    Transport,
    TransportError,
    locate,
)
from sluicegate.gateway.upstream.exchange import (
    READING,
    CallExchange,
    explain_failure,
    read_body,
    refused,
)
from sluicegate.gateway.upstream.tls import ClientTls
from sluicegate.gateway.upstream.transport import BackendTransport
from sluicegate.wire.plans import ASSIGNMENT_PATH, Assignment, PlanTrial, ServingPlans
from sluicegate.wire.protocol import (
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

_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(ServingState)
_verdict_decoder = msgspec.msgpack.Decoder(PlanVerdict)


class _Channel:
    """Holds what calls to one backend share: their head, and a bound on concurrent calls."""

    def __init__(self, endpoint: Endpoint, limit: int, token: bytes) -> None:
        self.address = (endpoint.url, endpoint.server_name)
        self.limit = limit
        self.origin, host, path = locate(endpoint.url, endpoint.server_name)
        common = b" HTTP/1.1\r\nhost: %b\r\ncontent-type: %b\r\n" % (host, MEDIA_TYPE.encode())
        if token:
            common += b"%b: %b\r\n" % (TOKEN_HEADER.encode(), token)
        self._path, self._common = path, common
        self.call_head = self.head(b"POST", CALL_PATH)
        self.free = limit
        """How many calls may begin at once."""
        self.waiting: dict[CallExchange, None] = {}
        """The calls that wait for their turn, in order."""

    def head(self, method: bytes, path: str) -> bytes:
        """Return the head of requests of `path`."""
        return b"%b %b%b%b" % (method, self._path, path.encode(), self._common)


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
        # Calls that wait come first: none of them may begin now.
        for exchange in sorted(self._exchanges, key=lambda each: each.has_begun):
            exchange.close(asyncio.CancelledError())
        await self._tasks.__aexit__(None, None, None)
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
            call,
            deadline=deadline,
            idle_timeout=idle_timeout,
            receive=receive,
            on_end=on_end,
            on_over=partial(self._call_over, channel),
        )
        self._exchanges.add(exchange)
        if not channel.free:
            channel.waiting[exchange] = None
            return exchange
        channel.free -= 1
        try:
            self._begin(channel, exchange)
        except BaseException:  # whatever it is, another call may have its turn
            exchange.cancel()
            raise
        return exchange

    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        """See `BackendClient.state`."""
        return await self._ask(endpoint, STATE_PATH, None, _state_decoder, time_limit)

    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.reload`."""
        return await self._ask(endpoint, RELOAD_PATH, plans, _state_decoder, time_limit)

    async def assign(
        self, endpoint: Endpoint, assignment: Assignment, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.assign`."""
        return await self._ask(endpoint, ASSIGNMENT_PATH, assignment, _state_decoder, time_limit)

    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        """See `BackendClient.check`."""
        return await self._ask(endpoint, CHECK_PATH, trial, _verdict_decoder, time_limit)

    def _begin(self, channel: _Channel, exchange: CallExchange) -> None:
        """Send a call that has its turn: over a kept connection, or else in a task."""
        body = _encoder.encode(exchange.begin(self._sender))
        response = self._transport.send_nowait(channel.origin, channel.call_head, body)
        if response is not None:
            exchange.follow(response)
        else:
            sending = self._send_call(channel, body, exchange)
            exchange.connect(self._tasks.create_task(sending))

    async def _send_call(self, channel: _Channel, body: bytes, exchange: CallExchange) -> None:
        try:
            response = await self._send(channel, channel.call_head, body)
        except TransportError as error:
            exchange.close(explain_failure(error, has_begun=False))
        except BaseException as error:
            # Whatever ends this task, the caller may not go on waiting for it.
            exchange.close(error)
            raise
        else:
            exchange.follow(response)

    def _call_over(self, channel: _Channel, exchange: CallExchange) -> None:
        """Give the turn of a call that is over to the one that waits for the longest time."""
        self._exchanges.discard(exchange)
        if not exchange.has_begun:
            del channel.waiting[exchange]
        elif channel.waiting:
            # Later, because calls that wait may end in this iteration, too.
            asyncio.get_running_loop().call_soon(self._begin_next, channel)
        else:
            channel.free += 1

    def _begin_next(self, channel: _Channel) -> None:
        if not channel.waiting:
            channel.free += 1
            return
        following = next(iter(channel.waiting))
        del channel.waiting[following]
        try:
            self._begin(channel, following)
        except Exception as error:  # noqa: BLE001 - it ends this call, not the event loop
            following.close(error)

    async def _ask(
        self,
        endpoint: Endpoint,
        path: str,
        message: msgspec.Struct | None,
        decoder: msgspec.msgpack.Decoder[T],
        time_limit: float,
    ) -> T:
        """`POST` the message, or `GET` if there is none. Return the decoded answer."""
        channel = self._channel(endpoint)
        head = channel.head(b"GET" if message is None else b"POST", path)
        content = b"" if message is None else _encoder.encode(message)
        asking = self._exchange_whole(channel, head, content, time_limit)
        try:
            return decoder.decode(await self._tasks.run(asking))
        except UNREADABLE as error:
            raise CallFailed(Cause.CUT, "the backend's answer cannot be read") from error

    async def _exchange_whole(
        self, channel: _Channel, head: bytes, content: bytes, time_limit: float
    ) -> bytes:
        response: Response | None = None
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        # After a pause of this process, an answer that arrived meanwhile is read first.
        timer = loop.call_later(time_limit, lambda: limit.reschedule(loop.time() + READING))
        try:
            async with limit:
                response = await self._send(channel, head, content)
                body = await read_body(response, MAX_STATE_BYTES)
        except TimeoutError as error:
            raise CallFailed(Cause.TIMED_OUT, "the backend did not answer in time") from error
        except ConnectTimeout as error:
            raise CallFailed(Cause.TIMED_OUT, "the backend took no connection in time") from error
        except TransportError as error:
            raise explain_failure(error, has_begun=response is not None) from error
        finally:
            timer.cancel()
            if response is not None:
                response.close()
        if response.status != HTTPStatus.OK:
            raise refused(response.status, body)
        return body

    def _transport_of(self, client: Literal["native", "httpx"]) -> Transport:
        if client not in self._transports:
            tls, tcp_keepalive = self._tls, self._tcp_keepalive
            if client == "native":
                self._transports[client] = BackendTransport(tls=tls, tcp_keepalive=tcp_keepalive)
            else:
                # Importing httpx takes 100 ms and 9 MB, which few workers need.
                from sluicegate.gateway.upstream.httpx_transport import HttpxTransport  # noqa: PLC0415

                self._transports[client] = HttpxTransport(tls=tls, tcp_keepalive=tcp_keepalive)
        return self._transports[client]

    async def _send(self, channel: _Channel, head: bytes, body: bytes) -> Response:
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
