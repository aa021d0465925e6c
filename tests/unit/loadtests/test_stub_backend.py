"""A backend without a model leaves nothing behind of a call that is given up."""

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from backends.protocol import Call, CallItem, Frame, Task
from loadtests.simulate.virtual_time import run_virtual
from testing.stub_backend import Reply, StubBackend, answer_after
from testing.waiting import until

CALL = Call(
    model="stub",
    revision="aaaaaaaaaaaa",
    profile="fp32",
    task=Task.CLASSIFY,
    parameters=b"\x80",
    items=[CallItem(body=b"\xa1a", remaining=5.0, scope="tenant-a")] * 2,
)


class TimedReply(Reply):
    """Keeps when frames were sent."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    @override
    async def send(self, *frames: Frame) -> None:
        self.sent.append(asyncio.get_running_loop().time())

    @override
    async def send_raw(self, content: bytes) -> None:
        pass


def test_items_are_answered_one_after_the_other_in_their_time() -> None:
    reply = TimedReply()

    async def serve() -> None:
        await answer_after(0.5)(StubBackend(), CALL, reply)

    run_virtual(serve())

    assert reply.sent == [0.5, 1.0, 1.0]  # with the report


def test_a_call_that_is_given_up_while_it_is_served_is_no_error() -> None:
    problems: list[dict[str, Any]] = []

    async def give_up() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await answer_after(0.5)(StubBackend(), CALL, TimedReply())
        await until(lambda: loop.time() > 1.0)

    run_virtual(give_up())

    assert problems == []
