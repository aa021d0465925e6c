"""Answers the calls of `inference.GRPCInferenceService`, and those of Envoy, in bytes."""

import asyncio
import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from itertools import accumulate
from typing import Any, Final

import grpc
import grpc.aio
from grpc import StatusCode
from typing_extensions import override

from sluicegate.gateway.api.http import Headers, HttpReply
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.errors import GatewayError, NotCached, Overloaded
from sluicegate.gateway.http.unsent_answers import LARGE_BYTES, UnsentAnswers
from sluicegate.gateway.rpc.call_metadata import (
    key_headers,
    key_in,
    request_headers,
    trailing_metadata,
)
from sluicegate.gateway.rpc.envoy_guard import CHECK, PROCESS, EnvoyGuard, GuardRefused
from sluicegate.gateway.rpc.in_process import ApplicationRequest, InProcessCalls, error_in
from sluicegate.gateway.rpc.infer_route import SERVICE
from sluicegate.gateway.rpc.messages import Message, MessageTable, decode_message
from sluicegate.gateway.rpc.metadata_methods import (
    METADATA_METHODS,
    REFUSED_METHODS,
    MetadataMethod,
)
from sluicegate.gateway.tasks import TaskScope, ignore_outcome
from sluicegate.wire.http.request_head import MAX_FIELDS, TOO_LARGE

_OK: Final = 200
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    402: StatusCode.RESOURCE_EXHAUSTED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    408: StatusCode.DEADLINE_EXCEEDED,
    409: StatusCode.ABORTED,
    413: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_HEALTH: Final = "/grpc.health.v1.Health/Check"
# A `HealthCheckResponse`: `SERVING` and `NOT_SERVING`.
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
_OF_ONE_REQUEST: Final = b"idempotency-key"  # the metadata of a stream are of all its requests
_FINAL: Final = "triton_final_response"
_STREAM_CALLS: Final = 16
"""The number of requests of a stream that are answered at a time."""
_MOST_STREAMS: Final = 64
_MOST_RECEIVED: Final = 64
"""The number of messages outside streams that are received at a time. grpcio receives a large
message as a whole."""
_LONGEST_HOLD: Final = 30.0
"""Seconds for which an answer waits for memory if its call has no deadline."""
_LONGEST_STREAM: Final = 3600.0
"""The most seconds that a stream of Envoy may last: one HTTP request and its answer."""
_MOST_DETAILS_BYTES: Final = 4096
_PRINTABLE: Final = frozenset(map(chr, range(0x20, 0x7F))) - {"%"}
_STOPPING: Final = "The gateway is stopping; open another stream."
_NO_MESSAGE: Final = "The call has no message; send one."
_LATE: Final = "The message did not arrive in time; send it faster, or a smaller one."
_TOO_MANY_STREAMS: Final = "Too many streams are open; share one, or call `ModelInfer`."
_TOO_MANY_REQUESTS: Final = (
    "Too many streams are open; raise `SLUICEGATE_MAX_CONNECTIONS`, or add workers."
)
_TOO_LONG: Final = "The stream is open for too long; open one for each request."
_Context = Any  # grpc.aio.ServicerContext, without types
_Handler = Any  # grpc.RpcMethodHandler


class HeldAnswers:
    """The bytes that the answers of one call hold under the caller's key."""

    def __init__(
        self, unsent: UnsentAnswers, key: Hashable, *, is_over: Callable[[], bool]
    ) -> None:
        self._unsent = unsent
        self._key = key
        self._is_over = is_over
        self._bytes = 0

    async def hold(self, size: int, deadline: float) -> int:
        """Wait for room for an answer; return the bytes that are held for it.

        Raises:
            Overloaded: there is no room until `deadline`.
        """
        if size <= LARGE_BYTES:
            return 0
        # grpcio copies the bytes that it sends.
        held = await self._unsent.hold(self._key, 2 * size, deadline)
        self._bytes += held
        if self._is_over():
            self.release(self._bytes)
        return held

    def release(self, held: int) -> None:
        """Release the bytes of an answer that was sent; a call that has ended holds none."""
        held = min(held, self._bytes)
        if held:
            self._bytes -= held
            self._unsent.release(self._key, held)

    def end(self) -> None:
        """Release all bytes."""
        self.release(self._bytes)


class RpcHandler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Implements the methods of the protocol. It reads no message from callers without a valid key.

    A message has `receive_timeout` seconds to arrive, except in streams. Streams take at most three
    quarters of `most_calls`, and those of Envoy half of these for each key. Once `draining` is set,
    streams of `ModelStreamInfer` answer the requests that they have read, and end. Those of Envoy
    go on, because an answer of a model would otherwise fail or pass the guard.
    """

    def __init__(
        self,
        calls: InProcessCalls,
        *,
        keys: KeyRing,
        messages: MessageTable,
        draining: asyncio.Event,
        receive_timeout: float,
        most_calls: int,
        unsent: UnsentAnswers,
    ) -> None:
        self._calls = calls
        self._keys = keys
        self._messages = messages
        self._draining = draining
        self._receive_timeout = receive_timeout
        self._unsent = unsent
        self._receiving = asyncio.Semaphore(_MOST_RECEIVED)
        self._streams = 0
        self._most_streams = max(1, most_calls * 3 // 4)
        self._envoy_streams = Counter[Hashable]()
        methods = {name: self._metadata(name, how) for name, how in METADATA_METHODS.items()}
        methods |= {name: self._refused(why) for name, why in REFUSED_METHODS.items()}
        methods["ModelInfer"] = self._infer
        # Their messages arrive where they are asked for, one by one.
        self._known = {
            f"{SERVICE}{name}": grpc.stream_unary_rpc_method_handler(method)
            for name, method in methods.items()
        }
        self._known[f"{SERVICE}ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream
        )
        self._guard = EnvoyGuard(calls, first_timeout=receive_timeout)
        self._known[CHECK] = grpc.stream_unary_rpc_method_handler(self._check)
        self._known[PROCESS] = grpc.stream_stream_rpc_method_handler(self._process)
        self._known[_HEALTH] = grpc.stream_unary_rpc_method_handler(self._health)
        public = [f"{SERVICE}{name}" for name, how in METADATA_METHODS.items() if how.is_public]
        self._public = frozenset({*public, _HEALTH})
        self._too_many_fields = grpc.stream_unary_rpc_method_handler(self._refuse_fields)
        self._stranger = grpc.stream_unary_rpc_method_handler(self._refuse_stranger)

    @override
    def service(self, handler_call_details: Any) -> _Handler | None:
        """Return what answers a call, before its message is read."""
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        handler = self._known.get(method)
        if len(metadata) > MAX_FIELDS:
            return self._too_many_fields
        if handler is None or method in self._public:
            return handler
        known = self._keys.find(key_in(metadata)) is not None
        return handler if known else self._stranger

    async def _infer(self, _: object, context: _Context) -> bytes:
        raw = await self._received(context)
        reply = await self._answer(raw, context)
        if reply.status != _OK:
            await _abort(context, reply)
        try:
            await self._held_by(context).hold(len(reply.body), self._hold_until(context))
        except Overloaded as error:
            await context.abort(StatusCode.UNAVAILABLE, error.detail)
        return reply.body

    def _metadata(self, name: str, how: MetadataMethod) -> Callable[..., Any]:
        request, response = self._messages[f"{name}Request"], self._messages[f"{name}Response"]

        async def answer(_: object, context: _Context) -> bytes:
            # Without a key there is no message to wait for: these have no fields.
            raw = b"" if how.is_public else await self._received(context)
            try:
                call = how.call(decode_message(request, raw))
            except GatewayError as error:
                await context.abort(_CODES[error.status], error.detail)
                raise
            reply = await self._ask(call, context)
            found = how.answer(reply, response)
            return await _abort(context, reply) if found is None else _encoded(found)

        return answer

    def _refused(self, why: str) -> Callable[..., Any]:
        async def refuse(_: object, context: _Context) -> None:
            await context.abort(StatusCode.UNIMPLEMENTED, why)

        return refuse

    async def _refuse_fields(self, _: object, context: _Context) -> None:
        await context.abort(StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE)

    async def _refuse_stranger(self, _: object, context: _Context) -> None:
        # The core says it, and counts it.
        reply = await self._calls.infer(b"", key_headers(context.invocation_metadata()))
        await _abort(context, reply)

    async def _health(self, _: object, context: _Context) -> bytes:
        reply = await self._ask(ApplicationRequest("GET", "/health/ready"), context)
        return _SERVING if reply.status == _OK else _NOT_SERVING

    async def _received(self, context: _Context) -> bytes:
        """Return the message of a call."""
        try:
            async with asyncio.timeout(self._receive_timeout), self._receiving:
                raw: bytes = await context.read()
        except TimeoutError:
            await context.abort(StatusCode.DEADLINE_EXCEEDED, _LATE)
            raise
        if raw is grpc.aio.EOF:
            await context.abort(StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)
        return raw

    async def _stream(self, messages: AsyncIterator[bytes], context: _Context) -> None:
        if self._streams >= _MOST_STREAMS or self._is_full():
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, _TOO_MANY_STREAMS)
        self._streams += 1
        try:
            await self._answer_stream(messages, context)
        finally:
            self._streams -= 1

    async def _check(self, _: object, context: _Context) -> bytes:
        raw = await self._received(context)
        async with _ends_call(context):
            return await self._guard.check(raw, _headers_of(context))

    def _is_full(self) -> bool:
        return self._streams + self._envoy_streams.total() >= self._most_streams

    async def _process(self, _: object, context: _Context) -> None:
        key, streams = self._key_of(context), self._envoy_streams
        if self._is_full() or streams[key] >= (self._most_streams + 1) // 2:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, _TOO_MANY_REQUESTS)
        streams[key] += 1
        try:
            await self._process_messages(context)
        finally:
            streams[key] -= 1
            if not streams[key]:
                del streams[key]

    async def _process_messages(self, context: _Context) -> None:
        def headers() -> Headers:
            return [one for one in _headers_of(context) if one[0] != _OF_ONE_REQUEST]

        async def receive(most: float | None) -> bytes | None:
            # Not bounded by `_receiving`: streams that wait for a model would take all its places.
            try:
                async with asyncio.timeout(most):
                    raw = await context.read()
            except TimeoutError:
                await context.abort(StatusCode.DEADLINE_EXCEEDED, _LATE)
                raise
            return None if raw is grpc.aio.EOF else raw

        answers, held = self._guard.process(receive, headers), self._held_by(context)
        async with (
            _ends_call(context),
            asyncio.timeout(_LONGEST_STREAM),
            contextlib.aclosing(answers),
        ):
            async for answer in answers:
                size = await held.hold(len(answer), self._hold_until(context))
                await context.write(answer)
                held.release(size)

    def _held_by(self, context: _Context) -> HeldAnswers:
        """Return the bytes that answers of a call hold until it ends."""
        held = HeldAnswers(self._unsent, self._key_of(context), is_over=context.done)
        context.add_done_callback(lambda _: held.end())
        return held

    def _key_of(self, context: _Context) -> Hashable:
        found = self._keys.find(key_in(context.invocation_metadata()))
        return None if found is None else found.key

    def _hold_until(self, context: _Context) -> float:
        """Return until when an answer may wait for room."""
        remaining = context.time_remaining()
        now = asyncio.get_running_loop().time()
        return now + (_LONGEST_HOLD if remaining is None else min(remaining, _LONGEST_HOLD))

    async def _answer_stream(self, messages: AsyncIterator[bytes], context: _Context) -> None:
        """Answer the requests of a stream in their order, some of them at a time."""
        answers = asyncio.Queue[asyncio.Task[tuple[Message, int]] | None]()
        places, held = asyncio.Semaphore(_STREAM_CALLS), self._held_by(context)

        async def read() -> None:
            await places.acquire()
            async for raw in messages:
                answers.put_nowait(tasks.create_task(self._stream_answer(raw, context, held)))
                await places.acquire()

        async with TaskScope() as tasks:
            reading = tasks.create_task(read())
            reading.add_done_callback(ignore_outcome)
            reading.add_done_callback(lambda _: answers.put_nowait(None))
            draining = tasks.create_task(self._draining.wait())
            draining.add_done_callback(lambda _: reading.cancel())
            while (answer := await answers.get()) is not None:
                message, size = await answer
                await context.write(_encoded(message))
                held.release(size)
                places.release()
        if self._draining.is_set():
            await context.abort(StatusCode.UNAVAILABLE, _STOPPING)

    async def _stream_answer(
        self, raw: bytes, context: _Context, held: HeldAnswers
    ) -> tuple[Message, int]:
        """Return the answer to one request of a stream, and the bytes held for it.

        The stream goes on after an error.
        """
        kind = self._messages["ModelStreamInferResponse"]
        reply = await self._answer(raw, context, without=_OF_ONE_REQUEST)
        problem = ""
        if reply.status == _OK:
            try:
                size = await held.hold(len(reply.body), self._hold_until(context))
            except Overloaded as error:
                problem = error.detail
            else:
                answer = self._messages["ModelInferResponse"].FromString(reply.body)
                answer.parameters[_FINAL].bool_param = True
                return kind(infer_response=answer), size
        answer = kind(error_message=problem or error_in(reply).error)
        with contextlib.suppress(GatewayError):  # so its error says
            answer.infer_response.id = decode_message(self._messages["ModelInferRequest"], raw).id
        return answer, 0

    async def _answer(
        self, message: bytes, context: _Context, *, without: bytes = b""
    ) -> HttpReply:
        """Return the answer to a `ModelInferRequest`."""
        headers = [one for one in _headers_of(context) if one[0] != without]
        reply = await self._calls.infer(message, headers)
        context.set_trailing_metadata(trailing_metadata(reply.lines))
        return reply

    async def _ask(self, call: ApplicationRequest, context: _Context) -> HttpReply:
        """Return the application's answer to a request."""
        reply = await self._calls.ask(call, _headers_of(context))
        context.set_trailing_metadata(trailing_metadata(reply.lines))
        return reply


@contextlib.asynccontextmanager
async def _ends_call(context: _Context) -> AsyncIterator[None]:
    """End a call by the error of what runs here."""
    try:
        yield
    except GuardRefused as error:
        await _abort(context, error.reply)
    except GatewayError as error:
        await context.abort(_CODES[error.status], _details(error.detail))
    except TimeoutError:
        await context.abort(StatusCode.DEADLINE_EXCEEDED, _TOO_LONG)


def _headers_of(context: _Context) -> Headers:
    return request_headers(context.invocation_metadata(), remaining=context.time_remaining())


async def _abort(context: _Context, reply: HttpReply) -> Any:
    """End a call with the error in `reply`."""
    error = error_in(reply)
    code = _CODES.get(reply.status, StatusCode.INTERNAL)
    if error.code == NotCached.code:  # else a deadline's status
        code = StatusCode.NOT_FOUND
    await context.abort(code, _details(error.error), trailing_metadata(reply.lines))


def _details(text: str) -> str:
    """Return the beginning of an error that may quote a request. Clients accept 8 kB in all."""
    text = text[:_MOST_DETAILS_BYTES]
    # They are percent-encoded.
    ends = accumulate([1 if one in _PRINTABLE else 3 * len(one.encode()) for one in text])
    return text[: bisect_right(list(ends), _MOST_DETAILS_BYTES)]


def _encoded(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
