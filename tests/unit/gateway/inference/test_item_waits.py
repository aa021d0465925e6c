"""Waiting for many items at once takes work in proportion to how many there are."""

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from sluicegate.gateway.dispatch.work import OpenItem, Work
from sluicegate.gateway.inference.coalescing import ItemWaits
from sluicegate.gateway.types import (
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


def counted(number: int) -> "list[CountedItem]":
    """Return open items of one request that nobody computes."""
    work = _work()
    return [CountedItem(work, index, b"a", cache_key("a")) for index in range(number)]


class Ended:
    """Takes the end of a wait."""

    def __init__(self) -> None:
        self.future: asyncio.Future[tuple[bool, list[int]]]
        self.future = asyncio.get_running_loop().create_future()

    def __call__(self, has_failed: bool, again: Sequence[int]) -> None:  # noqa: FBT001
        self.future.set_result((has_failed, list(again)))


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
    waits = ItemWaits(caller, is_whole=True, outcomes=[None] * 500)
    waits.led = counted(500)
    for item in waits.led:
        item.outcome = _REFUSED

    ended = Ended()
    waits.begin(ended)

    assert await ended.future == (True, [])
    assert CountedItem.compared < 1000


async def test_joined_items_that_fail_for_their_leaders_are_not_compared_with_all_led(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=True, outcomes=[None] * 1000)
    waits.led = counted(500)
    waits.joined = {500 + index: item for index, item in enumerate(counted(500))}
    ended = Ended()
    waits.begin(ended)
    before = CountedItem.compared

    for item in waits.joined.values():
        item.outcome = _LIMITED
        waits.items_ended([item])
    compared = CountedItem.compared - before
    own = waits.led[0]
    own.outcome = _LIMITED
    waits.items_ended([own])

    assert (await ended.future)[0]
    assert compared < 1000


async def test_an_item_that_fails_for_its_own_request_is_not_tried_again(
    anyio_backend: str,
) -> None:
    caller = Caller(principal=Principal(tenant=TenantId("t"), key=KeyId("k")), deadline=1e9)
    waits = ItemWaits(caller, is_whole=False, outcomes=[None, None])
    item = waits.joined[1] = OpenItem(_work(), 0, b"a", cache_key("a"))
    waits.led = [item]
    item.outcome = _LIMITED
    ended = Ended()
    waits.begin(ended)

    assert await ended.future == (False, [])
