"""Answers leave at the end of a turn, and none whose event could not be kept."""

import asyncio

import pytest
from typing_extensions import override

from gateway.corked import Cork, CorkedTransport

pytestmark = pytest.mark.anyio


class Wire(asyncio.Transport):
    """A transport that remembers what was written, and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False

    @override
    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written.append(data)

    @override
    def abort(self) -> None:
        self.is_aborted = True

    @override
    def is_closing(self) -> bool:
        return self.is_aborted


async def test_what_is_written_in_one_turn_leaves_in_one_piece() -> None:
    wire = Wire()
    transport = CorkedTransport(wire, asyncio.get_running_loop(), Cork())

    transport.write(b"head")
    transport.write(b"body")
    before = list(wire.written)
    await asyncio.sleep(0)

    assert (before, wire.written) == ([], [b"headbody"])


async def test_answers_whose_events_cannot_be_kept_end_their_connections_and_no_others() -> None:
    is_closed = True
    told: list[object] = []

    def keep() -> None:
        if is_closed:
            raise ValueError("the log is closed")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    cork = Cork(before=keep)
    lost, later = Wire(), Wire()

    CorkedTransport(lost, loop, cork).write(b"answer")
    await asyncio.sleep(0)
    is_closed = False
    CorkedTransport(later, loop, cork).write(b"answer")
    await asyncio.sleep(0)

    assert [type(error) for error in told] == [ValueError]
    assert (lost.written, lost.is_aborted) == ([], True)
    assert later.written == [b"answer"]
