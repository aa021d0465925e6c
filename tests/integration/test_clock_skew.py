"""A gateway whose clock is an hour ahead is noticed: against real servers, and by operators."""

import asyncio
import time
from functools import partial

import pytest

from sluicegate.gateway.app.clock_watch import ClockWatch
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import CONTROL_KEYS, Control

pytestmark = pytest.mark.anyio
HOUR = 3600.0


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_the_clocks_of_redis_and_the_ledger_tell(
    valkey: str, database: str, ahead: float
) -> None:
    redis = connect(valkey, key=CONTROL_KEYS, timeout=30.0)
    with Ledger.create(database) as ledger:
        watch = ClockWatch(
            state_redis=Control(redis).server_time,
            ledger=partial(asyncio.to_thread, ledger.server_time),
            monotonic=time.monotonic,
            wall=lambda: time.time() + ahead,  # noqa: TID251 - the clock that is wrong
        )

        await watch.measure()
    await redis.aclose()

    found = watch.statistics()
    has_clock = database.startswith("postgresql")
    assert HOUR - 60 < found.state_redis < HOUR + 60
    assert HOUR - 60 < found.ledger < HOUR + 60 if has_clock else found.ledger == 0.0


async def test_the_right_clock_is_not_reported(valkey: str) -> None:
    redis = connect(valkey, key=CONTROL_KEYS, timeout=30.0)

    async def without_clock() -> None:
        return None

    watch = ClockWatch(
        state_redis=Control(redis).server_time, ledger=without_clock, monotonic=time.monotonic
    )
    await watch.measure()
    await redis.aclose()

    assert watch.statistics().state_redis == pytest.approx(0.0, abs=0.01)
