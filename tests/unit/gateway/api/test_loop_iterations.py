"""Iterations of a real event loop are measured while requests arrive; time is given."""

import asyncio

import pytest

from sluicegate.gateway.api.load_shedding import DEADLINE, WORKER_DELAY, LoopIterations
from sluicegate.gateway.types import Criticality
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
_TARGET = 0.05
_ALLOWED = 10.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def iterations(clock: Clock) -> LoopIterations:
    return LoopIterations(most=_TARGET, clock=clock)


async def overload(iterations: LoopIterations, clock: Clock) -> None:
    """Let three iterations pass in which ten requests take 20 ms each."""
    for _ in range(3):
        for _ in range(10):
            iterations.add_request()
            clock.advance(0.02)
        await asyncio.sleep(0)


async def test_a_calm_worker_is_not_asked(iterations: LoopIterations, clock: Clock) -> None:
    for _ in range(100):
        assert not iterations.add_request()
        clock.advance(0.001)
        await asyncio.sleep(0)


async def test_an_overloaded_worker_admits_what_fits_into_an_iteration(
    iterations: LoopIterations, clock: Clock
) -> None:
    await overload(iterations, clock)

    reasons = []
    for _ in range(10):
        assert iterations.add_request()
        reasons.append(iterations.refuses(Criticality.DEFAULT, _ALLOWED))

    assert reasons == [None] * 4 + [WORKER_DELAY] * 6


async def test_who_cannot_wait_is_refused_first(iterations: LoopIterations, clock: Clock) -> None:
    await overload(iterations, clock)

    iterations.add_request()

    assert iterations.refuses(Criticality.CRITICAL, 0.1) == DEADLINE


async def test_an_overload_ends_with_the_load(iterations: LoopIterations, clock: Clock) -> None:
    await overload(iterations, clock)
    await asyncio.sleep(0)
    clock.advance(2.0)

    iterations.add_request()
    clock.advance(0.001)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not iterations.add_request()


async def test_without_a_target_nothing_is_measured(clock: Clock) -> None:
    iterations = LoopIterations(most=0.0, clock=clock)

    await overload(iterations, clock)

    assert not iterations.add_request()
