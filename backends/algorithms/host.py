"""The main program of an algorithm host: the process that runs one model owner's algorithm.

`host_process.start_host` starts this program: `python -m sluicegate.backends.algorithms.host SPEC`.
"""

import asyncio
import contextvars
import gc
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
from typing_extensions import override

from sluicegate.backends import errors
from sluicegate.backends.algorithms.authoring import Ask
from sluicegate.backends.algorithms.confinement import confine
from sluicegate.backends.algorithms.host_messages import (
    CancelModelRequest,
    CancelRequest,
    HostSpec,
    ModelReply,
    ModelRequest,
    RunReply,
    RunRequest,
    StartReply,
    ToHost,
)
from sluicegate.backends.algorithms.step_marks import StepMarks
from sluicegate.backends.algorithms.user_code import UserCode, error_location, read_user_code
from sluicegate.backends.errors import BackendError, ItemRefused
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.logs import trace_of
from sluicegate.wire.protocol import MessageReader, encode_frame

_MOST_RESULT_BYTES = 32 * 1024 * 1024
_MOST_CHARACTERS = 2_000
_ITEM: "contextvars.ContextVar[_Marked]" = contextvars.ContextVar("item")


def main(arguments: Sequence[str]) -> None:
    """Import the code and answer items until the backend closes the socket."""
    spec = msgspec.json.decode(arguments[0], type=HostSpec)
    link = socket.socket(fileno=spec.socket)
    marks = StepMarks(spec.marks)
    # Ignore SIGINT, which would end the event loop. Only the backend ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    confine(parent=spec.parent, memory_bytes=spec.memory_bytes)
    link.sendall(encode_frame(StartReply()))
    try:
        code = read_user_code(spec.code, Path(spec.folder))
    except ValueError as error:
        problem = " ".join(str(error).split())[:_MOST_CHARACTERS]
        link.sendall(encode_frame(StartReply(problem=problem)))
        return
    gc.collect()
    gc.freeze()
    link.sendall(encode_frame(StartReply(is_loaded=True)))
    asyncio.run(_serve(link, code, marks))


async def _serve(link: socket.socket, code: UserCode, marks: StepMarks) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(_task_factory(marks))
    sys.addaudithook(lambda event, _: _note_threads(event, marks))
    ended = loop.create_future()
    await loop.create_connection(lambda: _Session(code, ended), sock=link)
    await ended
    # Exit even if threads of the code still run.
    os._exit(0)


def _note_threads(event: str, marks: StepMarks) -> None:
    if event == "_thread.start_new_thread":
        marks.note_unmarked()


class _Marked:
    """Holds the slot of an item's step marks; `slot` is `None` once the item has ended."""

    def __init__(self, slot: int) -> None:
        self.slot: int | None = slot


def _task_factory(marks: StepMarks) -> Any:
    """Return a task factory that marks the steps of all tasks of an item.

    asyncio calls the factory for every task that the algorithm creates.
    """

    def create(
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[Any]":
        item = _ITEM.get(None) if context is None else context.get(_ITEM)
        if item is not None:
            work = _MarkedSteps(work, item, marks)
        return asyncio.Task(work, loop=loop, context=context)

    return create


class _MarkedSteps(Coroutine[Any, Any, Any]):
    """Marks each step of a coroutine."""

    def __init__(self, work: Coroutine[Any, Any, Any], item: _Marked, marks: StepMarks) -> None:
        self._work = work
        self._item = item
        self._marks = marks

    @override
    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    @override
    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        slot = self._item.slot
        if slot is None:
            # This task outlived its item. The slot may belong to another item by now.
            self._marks.note_unmarked()
            return step(*values)
        self._marks.begin(slot)
        try:
            return step(*values)
        except (SystemExit, KeyboardInterrupt) as error:
            # If a task raised these exceptions, they would end the event loop.
            raise RuntimeError from error
        finally:
            self._marks.end(slot)

    @override
    def close(self) -> None:
        self._work.close()

    @override
    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


class _Session(asyncio.Protocol):
    """Runs the items that the backend sends, and forwards their model calls to the backend."""

    def __init__(self, code: UserCode, ended: "asyncio.Future[None]") -> None:
        self._code = code
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._reader = MessageReader(msgspec.msgpack.Decoder(ToHost))
        self._tasks: dict[int, asyncio.Task[RunReply]] = {}
        self._calls: dict[int, asyncio.Future[ModelReply]] = {}
        self._call_count = 0

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.WriteTransport = transport

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(None)

    @override
    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if isinstance(message, RunRequest):
                self._start(message)
            elif isinstance(message, CancelRequest):
                if (task := self._tasks.get(message.number)) is not None:
                    task.cancel()
            else:
                call = self._calls.get(message.call)
                if call is not None and not call.done():
                    call.set_result(message)

    def _start(self, request: RunRequest) -> None:
        item, context = _Marked(request.slot), contextvars.copy_context()
        context.run(_ITEM.set, item)
        work = _answer(self._code, request, _HostAsk(self, request.number))
        task = self._loop.create_task(work, context=context)
        self._tasks[request.number] = task
        task.add_done_callback(partial(self._end, request.number, item))

    def _end(self, number: int, item: _Marked, task: "asyncio.Task[RunReply]") -> None:
        item.slot = None
        del self._tasks[number]
        # `_answer` raises nothing, but a task may be cancelled before its first step.
        is_cancelled = task.cancelled() or task.exception() is not None
        self.send(RunReply(number=number, end="failed") if is_cancelled else task.result())

    def send(self, message: Any) -> None:
        """Send a message to the backend."""
        self._transport.write(encode_frame(message))

    async def call_model(self, number: int, model: str, content: dict[str, Any]) -> ModelReply:
        """Call a model through the backend. If the calling task is cancelled, cancel the call."""
        self._call_count += 1
        call = self._call_count
        reply: asyncio.Future[ModelReply] = self._loop.create_future()
        self._calls[call] = reply
        try:
            # Convert here, so that a value without a JSON form raises an error in the algorithm's
            # own code.
            plain = msgspec.to_builtins(content, enc_hook=_plain, builtin_types=(bytes,))
            self.send(ModelRequest(number=number, call=call, model=model, **plain))
            return await reply
        except asyncio.CancelledError:
            self.send(CancelModelRequest(number=number, call=call))
            raise
        finally:
            del self._calls[call]


class _HostAsk(Ask):
    """Calls models on behalf of one item, through the backend."""

    def __init__(self, session: _Session, number: int) -> None:
        self._session = session
        self._number = number
        self.errors: list[BackendError] = []
        """Errors of the models that this item called."""

    @override
    async def __call__(self, model: str, texts: Sequence[Text]) -> FloatArray:
        reply = await self._ask(model, {"texts": list(texts)})
        # Copy, because a view of bytes is read-only.
        return np.frombuffer(reply.rows, dtype=np.float32).reshape(reply.shape).copy()

    @override
    async def answer(
        self, model: str, item: Any, *, task: str | None = None, **parameters: Any
    ) -> Any:
        reply = await self._ask(model, {"item": item, "task": task, "parameters": parameters})
        return orjson.loads(reply.result)

    async def _ask(self, model: str, content: dict[str, Any]) -> ModelReply:
        reply = await self._session.call_model(self._number, model, content)
        if not reply.error:
            return reply
        if reply.error == ValueError.__name__:
            raise ValueError(reply.detail)
        kind = getattr(errors, reply.error, BackendError)
        error: BackendError = kind.__new__(kind, reply.detail)
        error.code, error.retry_after = reply.code, reply.retry_after
        self.errors.append(error)
        raise error


async def _answer(code: UserCode, request: RunRequest, ask: _HostAsk) -> RunReply:
    """Run the code and return the item's reply. Raises nothing."""
    number = request.number
    try:
        item = _decoded(request.item, code.item, "bad_item")
        parameters = _decoded(request.parameters, code.parameters, "bad_parameter")
        result = await code.run(item, ask, **msgspec.structs.asdict(parameters))
        return RunReply(number=number, end="done", result=_encode_result(result, code.result))
    except BackendError as error:
        if any(error is one for one in ask.errors):
            return RunReply(number=number, end="passed_on", code=error.code)
        if isinstance(error, ItemRefused):
            detail = str(error)[:_MOST_CHARACTERS]
            return RunReply(number=number, end="refused", code=error.code, detail=detail)
        return _failed(number, error, code)
    except _InvalidResult as error:
        detail = f"the algorithm returned an invalid result: {error}"[:_MOST_CHARACTERS]
        return RunReply(number=number, end="failed", detail=detail)
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        return _failed(number, error, code)


def _failed(number: int, error: BaseException, code: UserCode) -> RunReply:
    place = error_location(error, Path(code.run.__code__.co_filename).name)
    detail = f"the algorithm failed with {place}"[:_MOST_CHARACTERS]
    trace = trace_of(error)[:_MOST_CHARACTERS]
    return RunReply(number=number, end="failed", detail=detail, trace=trace)


def _decoded(content: msgspec.Raw, kind: Any, code: str) -> Any:
    try:
        return msgspec.convert(msgspec.msgpack.decode(content), kind)
    except msgspec.ValidationError as error:
        raise ItemRefused(code, f"the algorithm does not accept this value: {error}") from None


class _InvalidResult(Exception):
    """Reports an invalid result; the message names types and fields, never values."""


def _encode_result(result: Any, kind: Any) -> bytes:
    try:
        plain = msgspec.to_builtins(result, enc_hook=_plain)
        msgspec.convert(plain, kind)
        encoded = orjson.dumps(plain)
        # orjson writes NaN and infinity as `null`.
        is_finite = b"null" not in encoded or _is_finite(plain)
    except (msgspec.ValidationError, NotImplementedError, TypeError, RecursionError) as error:
        raise _InvalidResult(str(error)) from None
    if not is_finite:
        raise _InvalidResult("it contains NaN or infinity")
    if len(encoded) > _MOST_RESULT_BYTES:
        raise _InvalidResult(f"it is larger than {_MOST_RESULT_BYTES} bytes")
    return encoded


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def _plain(value: Any) -> Any:
    """Convert a numpy value to a plain Python value."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"a `{type(value).__name__}` has no JSON form")


if __name__ == "__main__":
    main(sys.argv[1:])
