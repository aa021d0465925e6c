"""The Redis tier on virtual time, where a Redis that is silent is one that never replies."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from typing_extensions import override

from loadtests.simulate.virtual_time import run_virtual
from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.redis_tier import RedisTier
from sluicegate.gateway.cache.statistics import RemoteStatistics
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.redis.pipeline import Command, Replies
from testing.waiting import until
from tests.support.caching import cache_key


def make_tier(client: PipelinedClient) -> RedisTier:
    """Return a tier whose look-ups are late after a hundredth of a second."""
    return RedisTier(
        reads=client,
        writes=client,
        timeout=0.01,
        ttl_jitter=0.0,
        lease=0.25,
        monotonic=asyncio.get_running_loop().time,
        random=lambda: 1.0,
    )


class SilentClient:
    """Takes commands and replies to none."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        """How many keys each call had."""

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        raise NotImplementedError

    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        self.sent.append(len(commands[0]) - 1)
        return True

    async def aclose(self) -> None:
        pass


class EmptyValues(SilentClient):
    """Replies to each call as if an empty value lay under each key."""

    @override
    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        values = [b""] * (len(commands[0]) - 1)
        asyncio.get_running_loop().call_soon(on_done, [values])
        return super().execute_nowait(commands, on_done)


@pytest.mark.parametrize("count", [1, 3])
def test_an_empty_value_counts_as_that_of_another_key(count: int) -> None:
    """No worker wrote it: it is a fault, which must not look like a miss."""
    told: list[list[CachedResult | None]] = []
    client = EmptyValues()

    async def look_up() -> RemoteStatistics:
        async with make_tier(client) as tier:
            tier.fetch_nowait([cache_key(number) for number in range(count)], told.append)
            await until(lambda: bool(told))
            return tier.statistics()

    counts = run_virtual(look_up())

    assert told == [[None] * count]
    assert (counts.mismatches, counts.misses) == (count, 0)


def test_a_small_look_up_is_not_late_with_a_large_one_before_it() -> None:
    """The small one waits for its turn, which does not come."""
    told: dict[str, float] = {}
    client = SilentClient()

    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        async with make_tier(client) as tier:
            large = [cache_key(number) for number in range(20_000)]
            tier.fetch_nowait(large, lambda _: told.setdefault("large", loop.time()))
            await asyncio.sleep(0)
            tier.fetch_nowait([cache_key("a")], lambda _: told.setdefault("small", loop.time()))
            await until(lambda: len(told) == 2)

    run_virtual(look_up())

    assert client.sent == [20_000]
    assert told["small"] == pytest.approx(0.01, abs=0.002)
    assert told["large"] == pytest.approx(0.41, abs=0.002)
