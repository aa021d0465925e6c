"""The bound on a backend's concurrent calls: in turn, and without a slot lost to who left."""

import asyncio

import pytest

from gateway.upstream.http import _Slots

pytestmark = pytest.mark.anyio


async def test_slots_come_in_turn_and_none_overtakes() -> None:
    slots, order = _Slots(1), list[int]()

    async def wait(number: int) -> None:
        await slots.wait()
        order.append(number)

    assert slots.take()
    waiting = [asyncio.create_task(wait(number)) for number in range(2)]
    await asyncio.sleep(0)
    slots.release()
    overtook = slots.take()
    slots.release()
    await asyncio.gather(*waiting)
    slots.release()

    assert (overtook, order, slots.take(), slots.take()) == (False, [0, 1], True, False)


@pytest.mark.parametrize("comes_first", ["slot", "cancellation"])
async def test_a_slot_for_one_that_leaves_goes_to_the_next(comes_first: str) -> None:
    slots = _Slots(1)
    slots.take()
    leaving, staying = asyncio.create_task(slots.wait()), asyncio.create_task(slots.wait())
    await asyncio.sleep(0)

    if comes_first == "slot":
        slots.release()
        leaving.cancel()
    else:
        leaving.cancel()
        slots.release()
    await asyncio.wait_for(staying, 60.0)

    assert (await asyncio.gather(leaving, return_exceptions=True))[0].__class__ is (
        asyncio.CancelledError
    )
    assert not slots.take()
