"""Waits grow while something stays broken, and a stop ends any wait."""

import asyncio

import pytest

from sluicegate.gateway.workers.backoff import StoppableBackoff, pause


def test_waits_double_up_to_the_longest() -> None:
    backoff = StoppableBackoff(longest=0.3, chance=lambda: 0.0)

    waits = [backoff.failed() for _ in range(5)]

    assert waits == [0.05, 0.1, 0.2, 0.3, 0.3]
    assert backoff.failures == 5


def test_chance_takes_up_to_half_of_a_wait() -> None:
    chances = iter((0.0, 0.5, 1.0))
    backoff = StoppableBackoff(longest=0.05, chance=lambda: next(chances))

    waits = [backoff.failed() for _ in range(3)]

    assert waits == pytest.approx([0.05, 0.0375, 0.025])


def test_a_success_starts_over() -> None:
    backoff = StoppableBackoff(chance=lambda: 0.0)
    backoff.failed()
    backoff.failed()

    assert backoff.succeeded()
    assert not backoff.succeeded()
    assert backoff.failed() == 0.05


@pytest.mark.anyio
async def test_a_stop_ends_a_wait() -> None:
    stop = asyncio.Event()
    waiting = asyncio.create_task(pause(stop, 3600.0))

    stop.set()

    await asyncio.wait_for(waiting, 60.0)


@pytest.mark.anyio
async def test_a_wait_ends_by_itself() -> None:
    await pause(asyncio.Event(), 0.001)
