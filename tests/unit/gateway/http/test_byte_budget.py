"""A budget of bytes is divided fairly among keys, and requests wait for their part of it."""

import asyncio
import random

import pytest

from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.http.byte_budget import LARGE, ByteBudget, HeldBytes

pytestmark = pytest.mark.anyio
LONG = 1e9


class Scene:
    """A budget of 900 bytes, with a clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.budget = ByteBudget(900, what="Large bodies", clock=lambda: self.now)
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def wait(self, key: str, size: int, name: str = "") -> asyncio.Task[None]:
        async def hold() -> None:
            await self.budget.hold(key, size, LONG)
            self.order.append(name or key)

        self.tasks.append(asyncio.create_task(hold()))
        await settle()
        return self.tasks[-1]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_key_alone_may_use_most_of_the_budget_and_not_all() -> None:
    budget = Scene().budget

    assert budget.largest() == 800
    assert budget.try_hold("a", 800)
    assert not budget.try_hold("a", 1)
    assert budget.try_hold("b", 80)


async def test_released_bytes_can_be_held_again() -> None:
    budget = Scene().budget
    assert budget.try_hold("a", 500)
    assert budget.try_hold("a", 300)
    budget.release("a", 500)

    assert (budget.used_bytes, budget.held_by("a")) == (300, 300)
    assert budget.try_hold("b", 500)
    budget.release("a", 300)
    budget.release("b", 500)
    assert (budget.used_bytes, budget.held_by("a"), budget.held_by("b")) == (0, 0, 0)


async def test_bytes_that_grow_are_held_once_and_released_together() -> None:
    budget = ByteBudget(9 * LARGE, what="Large bodies", clock=lambda: 0.0)
    held, used = HeldBytes(budget, "a"), []

    for size in (LARGE, 2 * LARGE, 3 * LARGE, LARGE):
        held.grow(size)
        used.append(budget.used_bytes // LARGE)
    held.release()
    held.release()

    assert used == [0, 2, 3, 3]
    assert budget.used_bytes == 0


async def test_a_request_waits_until_there_is_room() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 800)
    task = await scene.wait("b", 200)
    assert scene.order == []
    scene.budget.release("a", 400)
    await task

    assert scene.budget.held_by("b") == 200


async def test_no_small_request_goes_before_a_key_that_has_nothing() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 700)
    _ = await scene.wait("b", 600)

    assert not scene.budget.try_hold("a", 1)
    assert not scene.budget.try_hold("c", 1)
    scene.budget.release("a", 600)
    await settle()
    assert scene.order == ["b"]
    assert scene.budget.try_hold("c", 1)


async def test_keys_take_turns_however_many_of_their_requests_wait() -> None:
    scene = Scene()
    assert scene.budget.try_hold("x", 800)
    for name in ("a1", "a2", "a3", "b1", "c1"):
        _ = await scene.wait(name[0], 90, name)
    scene.budget.release("x", 800)
    await settle()

    assert scene.order == ["a1", "b1", "c1", "a2", "a3"]


async def test_a_key_that_waits_for_its_own_bytes_stops_nobody() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 800)
    _ = await scene.wait("a", 100)

    assert scene.budget.try_hold("b", 50)
    assert scene.order == []


async def test_a_request_without_room_until_its_deadline_is_asked_to_retry() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 800)
    scene.now = 7.0

    with pytest.raises(Overloaded, match="Large bodies") as caught:
        await scene.budget.hold("b", 200, 7.0)
    assert caught.value.retry_after == 1.0
    assert scene.budget.try_hold("b", 50)


async def test_a_request_that_can_never_fit_does_not_wait() -> None:
    with pytest.raises(Overloaded):
        await Scene().budget.hold("a", 801, LONG)


async def test_those_who_wait_are_bounded_for_each_key_and_together() -> None:
    scene = Scene()
    assert scene.budget.try_hold("x", 800)
    for _ in range(32):
        _ = await scene.wait("a", 800)
    with pytest.raises(Overloaded):
        await scene.budget.hold("a", 800, LONG)
    for each in range(256 - 32):
        _ = await scene.wait(f"{each % 32}", 800)
    with pytest.raises(Overloaded):
        await scene.budget.hold("new", 800, LONG)

    for task in scene.tasks:
        task.cancel()
    await asyncio.gather(*scene.tasks, return_exceptions=True)
    assert scene.budget.waits == 0
    scene.budget.release("x", 800)
    assert scene.budget.try_hold("new", 800)


async def test_a_request_that_is_cancelled_as_it_gets_its_bytes_returns_them() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 800)
    task = await scene.wait("b", 200)
    scene.budget.release("a", 800)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert scene.budget.used_bytes == 0


async def test_bytes_that_come_back_as_a_request_is_cancelled_are_not_lost() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 800)
    task = await scene.wait("b", 200)
    task.cancel()
    scene.budget.release("a", 800)
    await asyncio.gather(task, return_exceptions=True)

    assert (scene.budget.used_bytes, scene.budget.waits) == (0, 0)
    assert scene.budget.try_hold("b", 800)


async def test_a_request_that_leaves_lets_the_next_one_in() -> None:
    scene = Scene()
    assert scene.budget.try_hold("a", 700)
    first = await scene.wait("b", 600)
    _ = await scene.wait("c", 100)
    first.cancel()
    await settle()

    assert scene.order == ["c"]


@pytest.mark.parametrize("seed", range(20))
async def test_every_request_gets_its_bytes_while_others_come_and_go(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene()
    budget = scene.budget

    async def come_and_go(key: str) -> None:
        for _ in range(40):
            size = chance.randint(1, 800)
            await budget.hold(key, size, LONG)
            assert budget.used_bytes < 900
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            budget.release(key, size)

    await asyncio.gather(*(come_and_go(key) for key in "aaabbc"))

    assert budget.used_bytes == 0
