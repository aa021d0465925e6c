"""Coalescing: one leads, the others wait, and nobody who leaves harms the rest."""

import asyncio

import pytest

from gateway.inference.coalescing import Flights
from gateway.types import ItemOutcome, Source
from tests.support.caching import cache_key

DONE = ItemOutcome(source=Source.COMPUTED, result=b"{}")


async def wait(future: asyncio.Future[ItemOutcome]) -> ItemOutcome:
    await asyncio.wait((future,))
    return future.result()


@pytest.mark.anyio
async def test_of_many_who_ask_one_leads_and_all_hear_its_outcome() -> None:
    flights = Flights()
    joined = [flights.join(cache_key("a")) for _ in range(200)]

    waiting = [asyncio.create_task(wait(seat.outcome)) for seat in joined]
    flights.settle(cache_key("a"), DONE)

    assert [seat.leads for seat in joined] == [True] + [False] * 199
    assert await asyncio.gather(*waiting) == [DONE] * 200
    statistics = flights.statistics()
    assert (statistics.in_flight, statistics.led, statistics.joined) == (0, 1, 199)


@pytest.mark.anyio
async def test_a_waiter_that_is_cancelled_leaves_the_others_waiting() -> None:
    flights = Flights()
    future = flights.join(cache_key("a")).outcome
    gone = asyncio.create_task(wait(future))
    stays = asyncio.create_task(wait(future))
    await asyncio.wait({gone}, timeout=0)

    gone.cancel()
    await asyncio.wait({gone})
    flights.settle(cache_key("a"), DONE)

    assert gone.cancelled()
    assert await stays == DONE


@pytest.mark.anyio
async def test_after_the_outcome_the_next_leads_anew() -> None:
    flights = Flights()
    flights.join(cache_key("a"))
    flights.settle(cache_key("a"), DONE)

    assert flights.join(cache_key("a")).leads
    assert flights.join(cache_key("b")).leads


@pytest.mark.anyio
async def test_settling_what_nobody_asked_for_or_twice_is_harmless() -> None:
    flights = Flights()
    flights.settle(cache_key("a"), DONE)
    future = flights.join(cache_key("a")).outcome

    flights.settle(cache_key("a"), DONE)
    flights.settle(cache_key("a"), DONE)

    assert future.result() == DONE
