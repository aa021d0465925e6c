"""The Redis tier on virtual time, where a Redis that is silent is one that never replies."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.cache.redis_tier import RedisTier
from gateway.redis.pipeline import Command, Replies
from loadtests.harness.waiting import until
from loadtests.simulate.virtual_time import run_virtual
from tests.support.caching import cache_key


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


def test_a_small_look_up_is_not_late_with_a_large_one_before_it() -> None:
    """The small one waits for its turn, which does not come."""
    told: dict[str, float] = {}
    client = SilentClient()

    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        tier = RedisTier(
            reads=client,
            writes=client,
            timeout=0.01,
            ttl_jitter=0.0,
            lease=0.25,
            monotonic=loop.time,
            random=lambda: 1.0,
        )
        async with tier:
            large = [cache_key(number) for number in range(20_000)]
            tier.fetch_nowait(large, lambda _: told.setdefault("large", loop.time()))
            await asyncio.sleep(0)
            tier.fetch_nowait([cache_key("a")], lambda _: told.setdefault("small", loop.time()))
            await until(lambda: len(told) == 2)

    run_virtual(look_up())

    assert client.sent == [20_000]
    assert told["small"] == pytest.approx(0.01, abs=0.002)
    assert told["large"] == pytest.approx(0.41, abs=0.002)
