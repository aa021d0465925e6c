"""A body that does not arrive ends the wait for it; one that does, or a stop, is not touched."""

import asyncio

import pytest

from gateway.api.body_timeouts import BodyTimeouts
from gateway.errors import RequestTimeout
from testing.waiting import until

pytestmark = pytest.mark.anyio


async def arrived() -> bytes:
    return b"a body"


async def never() -> bytes:
    await asyncio.get_running_loop().create_future()
    return b""


def soon() -> float:
    return asyncio.get_running_loop().time() + 0.01


async def test_a_body_that_is_there_is_returned_whatever_the_time() -> None:
    bodies = BodyTimeouts()

    assert await bodies.read(arrived(), deadline=0.0) == b"a body"
    assert len(bodies) == 0


async def test_a_body_that_does_not_arrive_is_late() -> None:
    bodies = BodyTimeouts()

    with pytest.raises(RequestTimeout, match="did not arrive"):
        await bodies.read(never(), deadline=soon())

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert len(bodies) == 0


async def test_a_late_body_is_found_while_others_come_and_go() -> None:
    bodies = BodyTimeouts()
    late = asyncio.create_task(bodies.read(never(), deadline=soon()))
    patient = asyncio.create_task(bodies.read(never(), deadline=soon() + 60.0))

    await until(late.done)

    assert isinstance(late.exception(), RequestTimeout)
    assert not patient.done()
    patient.cancel()
    await asyncio.wait([patient])


async def test_a_stop_is_a_stop() -> None:
    bodies = BodyTimeouts()
    reading = asyncio.create_task(bodies.read(never(), deadline=soon() + 60.0))
    await until(lambda: len(bodies) == 1)

    reading.cancel()
    await asyncio.wait([reading])

    assert reading.cancelled()
