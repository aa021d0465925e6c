"""Answers leave at the end of a turn, and none whose event could not be kept."""

import asyncio
import gc
import logging
import weakref

import pytest
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.write_coalescing import (
    BUFFERED_HTTP,
    BufferedHttpExtension,
    WriteCoalescer,
    WriteCoalescingTransport,
)

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
    transport = WriteCoalescingTransport(wire, asyncio.get_running_loop(), WriteCoalescer())

    transport.write(b"head")
    transport.write(b"body")
    before = list(wire.written)
    await asyncio.sleep(0)

    assert (before, wire.written) == ([], [b"headbody"])


async def test_a_connection_is_closed_once() -> None:
    """The second time a transport of TLS forgets what it writes to, while it waits for the peer."""
    wire = Wire()
    transport = WriteCoalescingTransport(wire, asyncio.get_running_loop(), WriteCoalescer())

    transport.close()
    transport.close()

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

    WriteCoalescingTransport(lost, loop, coalescer).write(b"answer")
    await asyncio.sleep(0)
    is_closed = False
    WriteCoalescingTransport(later, loop, coalescer).write(b"answer")
    await asyncio.sleep(0)

    assert [type(error) for error in told] == [ValueError]
    assert (lost.written, lost.is_aborted) == ([], True)
    assert later.written == [b"answer"]


async def test_a_request_is_no_garbage_when_it_was_answered() -> None:
    wire = Wire()
    scope = {"method": "POST"}
    cycle = RequestResponseCycle(
        scope=scope,  # type: ignore[arg-type]  # what is needed of it
        transport=wire,
        flow=FlowControl(wire),
        logger=logging.getLogger("test"),
        access_logger=logging.getLogger("test"),
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    whole = BufferedHttpExtension(cycle)
    scope["extensions"] = {BUFFERED_HTTP: whole}  # type: ignore[assignment]
    await whole.send(200, b"x: y\r\n", b"body")
    left = weakref.ref(cycle)

    gc.disable()
    try:
        del cycle, scope
        assert left() is None
    finally:
        gc.enable()
    assert wire.written == [
        b"HTTP/1.1 200 OK\r\ndate: today\r\nx: y\r\ncontent-length: 4\r\n\r\nbody"
    ]
