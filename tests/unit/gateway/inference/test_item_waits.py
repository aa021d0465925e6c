"""Waiting for many items at once takes work in proportion to how many there are."""

import asyncio

import pytest
from typing_extensions import override

from gateway.dispatch.work import OpenItem, Work
from gateway.inference.item_waits import ItemWaits
from gateway.types import (
    Caller,
    ItemFailure,
    ItemOutcome,
    KeyId,
    Principal,
    Source,
    TenantId,
)
from tests.support.caching import cache_key
from tests.support.dispatching import Started, work

pytestmark = pytest.mark.anyio
_REFUSED = ItemOutcome(
    source=Source.FAILED, failure=ItemFailure(status=503, code="overloaded", detail="Busy.")
)
_LIMITED = ItemOutcome(
    source=Source.FAILED, failure=ItemFailure(status=429, code="rate_limited", detail="Limited.")
)


def _work() -> Work:
    return Started(work(1), deadline=1e9, settle=lambda _: None).items[0].work


def counted() -> "CountedItem":
    """Return an open item that nobody computes."""
    return CountedItem(_work(), 0, b"a", cache_key("a"))


class CountedItem(OpenItem):
    """Counts how often an item is compared with another."""

    compared = 0

    @override
    def __eq__(self, other: object) -> bool:
        CountedItem.compared += 1
        return self is other

    __hash__ = OpenItem.__hash__


async def test_a_request_whose_items_all_fail_compares_none_with_all_others(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=True)
    for index in range(500):
        item = waits.led[index] = counted()
        item.outcome = _REFUSED

    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waits.on_end(ended.set_result)

    assert await ended
    assert waits.fill([None] * 500, has_failed=True) == []
    assert CountedItem.compared < 1000


async def test_joined_items_that_fail_for_their_leaders_are_not_compared_with_all_led(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=True)
    waits.led = {index: counted() for index in range(500)}
    waits.joined = {500 + index: counted() for index in range(500)}
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waits.on_end(ended.set_result)
    before = CountedItem.compared

    for item in waits.joined.values():
        item.outcome = _LIMITED
        waits.items_ended([item])
    compared = CountedItem.compared - before
    own = waits.led[0]
    own.outcome = _LIMITED
    waits.items_ended([own])

    assert await ended
    assert compared < 1000


async def test_an_item_that_fails_for_its_own_request_is_not_tried_again(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=False)
    item = waits.led[0] = waits.joined[1] = OpenItem(_work(), 0, b"a", cache_key("a"))
    item.outcome = _LIMITED
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waits.on_end(ended.set_result)
    await ended

    assert waits.fill([None, None], has_failed=False) == []
