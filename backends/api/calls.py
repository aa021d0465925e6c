"""Answers `POST /v1/call`: streams the outcomes of its items as they complete."""

import asyncio
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec
from msgspec.structs import replace

from backends.algorithms.base import QueryAlgorithm
from backends.api.asgi import client_of, find_header, read_body, respond
from backends.api.direct_calls import DirectCall, ProgressTimer, answer_at_once
from backends.api.transit_estimates import TransitEstimates
from backends.errors import (
    BackendError,
    BadCall,
    CallRefused,
    CallTooLarge,
    Overloaded,
    Unauthorized,
)
from backends.serving.call_work import CallWork
from backends.serving.core import ServingCore
from backends.serving.items import Decoders, ItemAnswerer
from backends.serving.queries import ITEMS_AT_ONCE, QueryCall
from backends.telemetry.spans import Tracing
from wire.http.connection import Connection
from wire.http.messages import Message, Receive, Scope, Send
from wire.protocol import (
    CALL_PATH,
    MEDIA_TYPE,
    TOKEN_HEADER,
    UNREADABLE,
    WIRE_VERSION,
    Call,
    CallItem,
    Frame,
    Refusal,
    encode_frame,
)

_MEDIA = MEDIA_TYPE.encode()
_TOKEN = TOKEN_HEADER.encode()
_MAX_ITEMS = 65_536
_OK = 200
# Of a scope: what answers its call, where `begin` has read that.
_OPENED = "sluicegate.opened"
# After so many seconds without an outcome a report says that batches run: a gateway treats longer
# silence as a backend that hangs.
_PROGRESS = 1.0
_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", _MEDIA)],
}


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
        if self._wants_certificate and not client_of(scope).is_certified:
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
        self._progress = progress
        self._timer = ProgressTimer(progress)
        self._decoders = Decoders()
        self._transit = TransitEstimates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit the call, answer its items, send each outcome when it is there.

        Raises:
            CallRefused: it is not answered here; nothing was sent.
            Overloaded: it would be late, or there is no room; nothing was sent.
            ClientGone: the client disconnected before its body arrived.
        """
        self._authenticator.check(scope)
        body = await read_body(scope, receive, max_bytes=self._max_body_bytes)
        answerer, work = scope.get(_OPENED) or self._open(body)
        work.admit()
        client = client_of(scope)
        with self._core.calls, closing(work):
            reply = _Reply(send, self._core, work, interval=self._progress)
            try:
                with closing(reply), client:
                    await _answer_all(answerer, reply)
            except asyncio.CancelledError:
                if not client.is_disconnected:
                    raise

    def is_authenticated_call(self, scope: Scope) -> bool:
        """Whether a request is a call whose caller was authenticated: `begin` may answer others."""
        try:
            self._authenticator.check(scope)
        except Unauthorized:
            return False
        is_call: bool = scope["path"] == CALL_PATH and scope["method"] == "POST"
        return is_call

    def begin(self, body: bytes, connection: Connection, scope: Scope) -> Scope | None:
        """Begin to answer an authenticated call; return the scope where `__call__` has to."""
        if len(body) > self._max_body_bytes:
            return scope
        try:
            answerer, work = self._open(body)
            algorithm = answerer.algorithm.as_query
            if algorithm is None:
                # In the scope it ends with the request, also if the caller leaves now.
                return {**scope, _OPENED: (answerer, work)}
            work.admit()
        except (CallRefused, Overloaded) as error:
            answer_at_once(connection, error.status, _encode_refusal(error))
            return None
        DirectCall(
            connection, self._core, answerer, algorithm, work=work, progress=self._timer
        ).begin()
        return None

    def _open(self, body: bytes) -> tuple[ItemAnswerer, CallWork]:
        """Return what answers a call, and its work, which is not admitted yet."""
        received = self._clock()
        call = self._decode(body)
        if waited := self._transit.waited(call.sender, call.sent, received):
            call = _with_less_time(call, waited)
        entry, work = self._core.admit(call)
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


def _with_less_time(call: Call, waited: float) -> Call:
    """Return a call whose items have `waited` seconds less, but half of their time at least."""
    items = [
        replace(item, remaining=max(item.remaining - waited, item.remaining / 2))
        for item in call.items
    ]
    return replace(call, items=items)


async def _answer_all(answerer: ItemAnswerer, reply: "_Reply") -> None:
    """Answer the items of a call in the way that costs least for its algorithm."""
    items, algorithm = answerer.call.items, answerer.algorithm.as_query
    if algorithm is not None:
        await _answer_queries(answerer, algorithm, reply)
    elif len(items) == 1:
        # In this very task: tasks are what costs.
        await reply.send([await answerer.answer(0, items[0])], is_last=True)
    else:
        await _OutcomeStream(answerer, items).send_all(reply)


async def _answer_queries(
    answerer: ItemAnswerer, algorithm: QueryAlgorithm, reply: "_Reply"
) -> None:
    """Answer items that are one query each, and send what is ready at each moment together."""
    changed = asyncio.Event()
    query = QueryCall(answerer, algorithm, changed.set)
    with closing(query):
        while not query.is_over:
            query.begin()
            outcomes = query.take()
            if outcomes:
                await reply.send(outcomes, is_last=query.is_over)
            else:
                await changed.wait()
            changed.clear()


class _Reply:
    """Sends the outcomes of a call, and reports while it has none and progress is made.

    The reports in between are the same as the last one.
    """

    def __init__(self, send: Send, core: ServingCore, work: CallWork, *, interval: float) -> None:
        self._send = send
        self._core = core
        self._work = work
        self._interval = interval
        self._has_begun = False
        self._is_sending = False
        self._reporting: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(interval, self._on_timer)

    def close(self) -> None:
        """Stop reporting."""
        self._timer.cancel()
        if self._reporting is not None:
            self._reporting.cancel()

    async def send(self, outcomes: Sequence[Frame], *, is_last: bool) -> None:
        """Send outcomes, and a report after them."""
        self._is_sending = True  # no report comes between
        if self._reporting is not None:
            await self._reporting
        body = b"".join(map(encode_frame, outcomes)) + self._core.report_frame()
        if is_last and not self._has_begun:
            await respond(self._send, _OK, body, _MEDIA)
            return
        await self._send_part(body, is_last=is_last)
        self._is_sending = is_last

    async def _send_part(self, body: bytes, *, is_last: bool) -> None:
        if not self._has_begun:
            # The head goes with the first part, in one packet.
            self._has_begun = True
            await self._send(_START)
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    def _on_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._on_timer)
        if not self._work.has_progressed() or self._is_sending:
            return
        if self._reporting is None or self._reporting.done():
            report = self._send_part(self._core.report_frame(), is_last=False)
            self._reporting = asyncio.create_task(report)


class _OutcomeStream:
    """Answers the items of a call, several at a time, and sends their outcomes."""

    def __init__(self, answerer: ItemAnswerer, items: list[CallItem]) -> None:
        self._answerer = answerer
        self._items = items
        self._ready: list[Frame] = []
        self._changed = asyncio.Event()

    async def send_all(self, reply: _Reply) -> None:
        """Send every outcome."""
        waiting = enumerate(self._items)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(self._items), ITEMS_AT_ONCE)):
                group.create_task(self._answer(waiting))
            await self._send_as_ready(reply)

    async def _answer(self, waiting: Iterator[tuple[int, CallItem]]) -> None:
        for index, item in waiting:
            outcome = await self._answerer.answer(index, item)
            # The list is another one after each sending: it must be looked up after the wait.
            self._ready.append(outcome)
            self._changed.set()

    async def _send_as_ready(self, reply: _Reply) -> None:
        remaining = len(self._items)
        while remaining:
            await self._changed.wait()
            self._changed.clear()
            frames, self._ready = self._ready, []
            remaining -= len(frames)
            await reply.send(frames, is_last=not remaining)


async def send_refusal(send: Send, error: BackendError) -> None:
    """Send a call's refusal as a whole."""
    await respond(send, error.status, _encode_refusal(error), _MEDIA)


def _encode_refusal(error: BackendError) -> bytes:
    refusal = Refusal(
        code=error.code,
        detail=str(error),
        retryable=error.retryable,
        retry_after=error.retry_after,
    )
    return msgspec.msgpack.encode(refusal)
