"""Waiting for many items at once takes work in proportion to how many there are."""

import asyncio

import pytest
from typing_extensions import override

from gateway.inference.coalescing import Flight
from gateway.inference.item_waits import ItemWaits
from gateway.types import (
    Caller,
    Criticality,
    ItemFailure,
    ItemOutcome,
    KeyId,
    Principal,
    Source,
    TenantId,
)

pytestmark = pytest.mark.anyio
_REFUSED = ItemOutcome(
    source=Source.FAILED, failure=ItemFailure(status=503, code="overloaded", detail="Busy.")
)
_LIMITED = ItemOutcome(
    source=Source.FAILED, failure=ItemFailure(status=429, code="rate_limited", detail="Limited.")
)


class CountedFlight(Flight):
    """Counts how often a flight is compared with another."""

    compared = 0

    @override
    def __eq__(self, other: object) -> bool:
        CountedFlight.compared += 1
        return self is other

    __hash__ = Flight.__hash__


async def test_a_request_whose_items_all_fail_compares_none_with_all_others(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=True)
    for index in range(500):
        flight = waits.led[index] = CountedFlight(Criticality.DEFAULT)
        flight.outcome = _REFUSED

    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waits.on_end(ended.set_result)

    assert await ended
    assert waits.fill([None] * 500, has_failed=True) == []
    assert CountedFlight.compared < 1000


async def test_joined_items_that_fail_for_their_leaders_are_not_compared_with_all_led(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=True)
    waits.led = {index: CountedFlight(Criticality.DEFAULT) for index in range(500)}
    waits.joined = {500 + index: CountedFlight(Criticality.DEFAULT) for index in range(500)}
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waits.on_end(ended.set_result)
    before = CountedFlight.compared

    for flight in waits.joined.values():
        flight.outcome = _LIMITED
        waits.flights_ended([flight])
    compared = CountedFlight.compared - before
    own = waits.led[0]
    own.outcome = _LIMITED
    waits.flights_ended([own])

    assert await ended
    assert compared < 1000


async def test_an_item_that_fails_for_its_own_request_is_not_tried_again(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=False)
    flight = waits.led[0] = waits.joined[1] = Flight(Criticality.DEFAULT)
    flight.outcome = _LIMITED
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waits.on_end(ended.set_result)
    await ended

    assert waits.fill([None, None], has_failed=False) == []
