"""Answers leave at the end of a turn, and none whose event could not be kept."""

import asyncio
import gc
import weakref

import pytest
from typing_extensions import override

from sluicegate.wire.http.exchange import BUFFERED_HTTP, Exchange
from sluicegate.wire.http.messages import Scope
from sluicegate.wire.http.writing import AnswerWriter, WriteCoalescer

pytestmark = pytest.mark.anyio


class Wire(asyncio.Transport):
    """A transport that remembers what was written, and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False
        self.closes = 0

    @override
    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written.append(data)

    @override
    def abort(self) -> None:
        self.is_aborted = True

    @override
    def close(self) -> None:
        self.closes += 1

    @override
    def is_closing(self) -> bool:
        return self.is_aborted or self.closes > 0


async def test_what_is_written_in_one_turn_leaves_in_one_piece() -> None:
    wire = Wire()
    writer = AnswerWriter(wire, WriteCoalescer())

    writer.write(b"head")
    writer.write(b"body")
    before = list(wire.written)
    await asyncio.sleep(0)

    assert (before, wire.written) == ([], [b"headbody"])


async def test_a_connection_is_closed_once() -> None:
    """The second time a transport of TLS forgets what it writes to, while it waits for the peer."""
    wire = Wire()
    writer = AnswerWriter(wire, WriteCoalescer())

    writer.close()
    writer.close()

    assert wire.closes == 1


async def test_answers_whose_events_cannot_be_kept_end_their_connections_and_no_others() -> None:
    is_closed = True
    told: list[object] = []

    def keep() -> None:
        if is_closed:
            raise ValueError("the log is closed")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    coalescer = WriteCoalescer(before=keep)
    lost, later = Wire(), Wire()

    AnswerWriter(lost, coalescer).write(b"answer")
    await asyncio.sleep(0)
    is_closed = False
    AnswerWriter(later, coalescer).write(b"answer")
    await asyncio.sleep(0)

    assert [type(error) for error in told] == [ValueError]
    assert (lost.written, lost.is_aborted) == ([], True)
    assert later.written == [b"answer"]


class _Line:
    """A connection that answers one exchange."""

    default_lines = b"date: today\r\n"
    is_last = False

    def __init__(self, wire: Wire) -> None:
        self.writer = AnswerWriter(wire, WriteCoalescer())

    def pause_reading(self) -> None:
        raise NotImplementedError

    def resume_reading(self) -> None:
        raise NotImplementedError

    def end_answer(self, *, is_last: bool) -> None:
        assert not is_last


async def test_a_request_is_no_garbage_when_it_was_answered() -> None:
    wire = Wire()

    async def answer(scope: Scope, _receive: object, _send: object) -> None:
        await scope["extensions"][BUFFERED_HTTP].send(200, b"x: y\r\n", b"body")

    scope: Scope = {"method": "POST"}
    exchange = Exchange(_Line(wire), scope, keeps_alive=True, expects_continue=False)
    scope["extensions"] = {BUFFERED_HTTP: exchange}
    await exchange.run(answer)
    await asyncio.sleep(0)
    left = weakref.ref(exchange)

    gc.disable()
    try:
        del exchange, scope
        assert left() is None
    finally:
        gc.enable()
    assert wire.written == [
        b"HTTP/1.1 200 OK\r\ndate: today\r\nx: y\r\ncontent-length: 4\r\n\r\nbody"
    ]
