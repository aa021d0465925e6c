"""Answers `POST /v1/call`: streams the outcomes of its items as they complete."""

import asyncio
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager

import msgspec
from msgspec.structs import replace

from sluicegate.backends.api.asgi import find_header, read_body
from sluicegate.backends.api.direct_calls import CONTENT, CallReply, DirectCall, ProgressTimer
from sluicegate.backends.api.transit_estimates import TransitEstimates
from sluicegate.backends.errors import (
    BackendError,
    BadCall,
    CallRefused,
    CallTooLarge,
    Overloaded,
    Unauthorized,
)
from sluicegate.backends.serving.call_work import CallWork
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.serving.items import Decoders, ItemAnswerer
from sluicegate.backends.serving.queries import ITEMS_AT_ONCE
from sluicegate.backends.serving.residency import NotLoaded
from sluicegate.backends.telemetry.spans import Tracing
from sluicegate.wire.http.connection import HAS_CERTIFICATE
from sluicegate.wire.http.exchange import BUFFERED_HTTP, Exchange
from sluicegate.wire.http.messages import Receive, Scope
from sluicegate.wire.protocol import (
    CALL_PATH,
    TOKEN_HEADER,
    UNREADABLE,
    WIRE_VERSION,
    Call,
    Frame,
    Refusal,
)

_TOKEN = TOKEN_HEADER.encode()
_MAX_ITEMS = 4_096
# Of a scope: what answers its call, where `begin` has read that.
_OPENED = "sluicegate.opened"
# After so many seconds without an outcome a report says that batches run: a gateway treats longer
# silence as a backend that hangs.
_PROGRESS = 1.0


class CallAuthenticator:
    """Authenticates callers by a shared token and, if required, a client certificate.

    An authenticated caller is trusted with the tenants of its items. Where neither is required,
    only this machine can connect: see `backends.app.check_trust`.
    """

    def __init__(self, tokens: Sequence[str], *, wants_certificate: bool = False) -> None:
        self._tokens = [token.encode() for token in tokens]
        self._wants_certificate = wants_certificate

    def check(self, scope: Scope) -> None:
        """Raise `Unauthorized` unless the request carries a token, on a certified connection."""
        if self._tokens:
            given = find_header(scope, _TOKEN) or b""
            if not any(hmac.compare_digest(given, token) for token in self._tokens):
                raise Unauthorized(f"the header `{TOKEN_HEADER}` is missing or wrong")
        if self._wants_certificate and not scope["state"].get(HAS_CERTIFICATE):
            raise Unauthorized("a client certificate is missing")


class CallHandler:
    """Answers calls."""

    def __init__(
        self,
        *,
        core: ServingCore,
        authenticator: CallAuthenticator,
        tracing: Tracing,
        clock: Callable[[], float],
        max_body_bytes: int,
        progress: float = _PROGRESS,
    ) -> None:
        self._core = core
        self._authenticator = authenticator
        self._tracing = tracing
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._timer = ProgressTimer(progress)
        self._decoders = Decoders()
        self._transit = TransitEstimates()

    async def __call__(self, scope: Scope, receive: Receive) -> None:
        """Admit the call of an authenticated caller, and send each outcome when it is there.

        Raises:
            CallRefused: it is not answered here; nothing was sent.
            Overloaded: it would be late, or there is no room; nothing was sent.
            ClientGone: the client disconnected before its body arrived.
        """
        body = await read_body(scope, receive, max_bytes=self._max_body_bytes)
        exchange: Exchange = scope["extensions"][BUFFERED_HTTP]
        opened = scope.get(_OPENED)
        if opened is not None and opened[1].is_loaded:
            await self._answer(opened, exchange)
            return
        call = self._read(body)
        try:
            opened = self._open(call)
        except NotLoaded as cold:
            await self._answer_later(call, cold, exchange)
        else:
            await self._answer(opened, exchange)

    async def _answer_later(self, call: Call, cold: NotLoaded, exchange: Exchange) -> None:
        """Answer a call once its model is loaded."""
        began, time_left = self._clock(), max(item.remaining for item in call.items)
        with _ended_by_disconnect(exchange):
            async with AsyncExitStack() as held:
                with self._core.calls:  # a drain waits for this call
                    load = self._core.residency.loaded(cold.encoders, time_left=time_left)
                    await held.enter_async_context(load)
                late = _with_less_time(call, self._clock() - began, least=0.0)
                await self._answer(self._open(late, has_waited=True), exchange)

    async def _answer(self, opened: tuple[ItemAnswerer, CallWork], exchange: Exchange) -> None:
        answerer, work = opened
        work.admit()
        reply = CallReply(exchange, self._core, work, self._timer)
        if (algorithm := answerer.algorithm.as_query) is not None:
            ended = asyncio.Event()
            with closing(DirectCall(reply, answerer, algorithm, on_end=ended.set)) as call:
                call.begin()
                await ended.wait()
            return
        with closing(reply), _ended_by_disconnect(exchange):
            await _answer_all(answerer, reply)

    def is_authenticated_call(self, scope: Scope) -> bool:
        """Whether a request is a call whose caller was authenticated: `begin` may answer others."""
        try:
            self._authenticator.check(scope)
        except Unauthorized:
            return False
        is_call: bool = scope["path"] == CALL_PATH and scope["method"] == "POST"
        return is_call

    def begin(self, body: bytes, exchange: Exchange) -> Scope | None:
        """Begin to answer an authenticated call.

        Where `__call__` has to answer it, return what it needs in the scope.
        """
        if len(body) > self._max_body_bytes:
            return {}
        try:
            answerer, work = self._open(self._read(body))
            algorithm = answerer.algorithm.as_query
            if algorithm is None:
                # In the scope it ends with the request, also if the caller leaves now.
                return {_OPENED: (answerer, work)}
            work.admit()
        except NotLoaded:
            return {}  # `__call__` waits for the load
        except (CallRefused, Overloaded) as error:
            exchange.send_now(error.status, CONTENT, encode_refusal(error))
        else:
            reply = CallReply(exchange, self._core, work, self._timer)
            DirectCall(reply, answerer, algorithm).begin()
        return None

    def _read(self, body: bytes) -> Call:
        received = self._clock()
        call = self._decode(body)
        if waited := self._transit.waited(call.sender, call.sent, received):
            call = _with_less_time(call, waited)
        return call

    def _open(self, call: Call, *, has_waited: bool = False) -> tuple[ItemAnswerer, CallWork]:
        """Return what answers a call, and its work, which is not admitted yet."""
        received = self._clock()
        entry, work = self._core.admit(call, has_waited=has_waited)
        answerer = ItemAnswerer(
            core=self._core,
            entry=entry,
            work=work,
            call=call,
            decoders=self._decoders,
            received=received,
            clock=self._clock,
            tracing=self._tracing,
        )
        return answerer, work

    def _decode(self, body: bytes) -> Call:
        try:
            call = self._decoders.call.decode(body)
        except UNREADABLE as error:
            raise BadCall(f"the body is no call: {error}") from None
        if call.version != WIRE_VERSION:
            raise BadCall(f"version {call.version} of the wire is not spoken; send {WIRE_VERSION}")
        if not call.items:
            raise BadCall("the call has no items")
        if len(call.items) > _MAX_ITEMS:
            raise CallTooLarge(f"the call has more than {_MAX_ITEMS} items; send fewer")
        return call


def _with_less_time(call: Call, waited: float, *, least: float = 0.5) -> Call:
    """Return a call whose items have `waited` seconds less, but a share of `least` at least."""
    items = [
        replace(item, remaining=max(item.remaining - waited, item.remaining * least))
        for item in call.items
    ]
    return replace(call, items=items)


@contextmanager
def _ended_by_disconnect(exchange: Exchange) -> Iterator[None]:
    """End the block when the client leaves."""
    task = asyncio.current_task()
    exchange.on_disconnect = task.cancel if task is not None else None
    try:
        yield
    except asyncio.CancelledError:
        if not exchange.is_disconnected:
            raise
    finally:
        exchange.on_disconnect = None


async def _answer_all(answerer: ItemAnswerer, reply: CallReply) -> None:
    """Answer items by coroutines, several at a time; send what is ready at a moment together."""
    items = answerer.call.items
    if len(items) == 1:
        # In this very task: tasks are what costs.
        reply.send([await answerer.answer(0, items[0])], is_last=True)
        return
    waiting, ready = enumerate(items), asyncio.Queue[Frame]()

    async def answer() -> None:
        for index, item in waiting:
            ready.put_nowait(await answerer.answer(index, item))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(items), ITEMS_AT_ONCE)):
            group.create_task(answer())
        remaining = len(items)
        while remaining:
            outcomes = [await ready.get()]
            while not ready.empty():
                outcomes.append(ready.get_nowait())
            remaining -= len(outcomes)
            reply.send(outcomes, is_last=not remaining)


def encode_refusal(error: BackendError) -> bytes:
    """Return the body that refuses a call as a whole."""
    refusal = Refusal(
        code=error.code,
        detail=str(error),
        retryable=error.retryable,
        retry_after=error.retry_after,
    )
    return msgspec.msgpack.encode(refusal)
