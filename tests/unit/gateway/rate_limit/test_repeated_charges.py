"""A repeated charge decides as its limiter does, and takes nothing where it cannot."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import asdict
from math import ceil

import msgspec
import pytest
from hypothesis import given, strategies as st
from redis.asyncio import Redis

from sluicegate.gateway.rate_limit.base import Charge, LimiterStatistics
from sluicegate.gateway.rate_limit.headers import go_duration, rate_limit_lines
from sluicegate.gateway.rate_limit.lease import Lease
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.rate_limit.repeated_charges import (
    DelegatedCharge,
    LeasedCharge,
    RepeatedCharges,
)
from sluicegate.gateway.types import Rule
from tests.support.clock import Clock
from tests.support.limits import LocalRateLimiter

pytestmark = pytest.mark.anyio
_RULES = (
    Rule(name="minute", unit="requests", capacity=1_000, window=60.0),
    Rule(name="items", unit="items", capacity=5_000, window=60.0),
)
_TIME = re.compile(rb"(\d+)ms")
_CHARGES = tuple(Charge(rule=rule, bucket=f"rl:{{a}}:t:{rule.name}", amount=1) for rule in _RULES)


def times(lines: bytes | None) -> list[int]:
    """Return the milliseconds in `lines`: the two limiters were filled one after the other."""
    return [int(found) for found in _TIME.findall(lines or b"")]


def without_times(lines: bytes | None) -> bytes | None:
    """Return `lines` without them."""
    return lines and _TIME.sub(b"", lines)


@asynccontextmanager
async def leased(
    url: str, clock: Clock, charges: tuple[Charge, ...] = _CHARGES
) -> AsyncIterator[RedisRateLimiter]:
    """Yield a limiter that holds leases on the buckets of `charges`.

    It is not entered, so that it gives no lease back.
    """
    async with Redis.from_url(url) as redis:
        await redis.flushdb()
        limiter = RedisRateLimiter(redis=redis, holder="w", local_share=0.1, monotonic=clock)
        # A call that outlives the client would leave a connection open.
        async with limiter._tasks:
            for _ in range(3):
                assert (await limiter.admit(charges)).allowed
                clock.advance(0.001)
            yield limiter


async def test_it_tells_what_the_limiter_would_have_told(valkey: str) -> None:
    clocks = Clock(), Clock()
    async with leased(valkey, clocks[0]) as asked, leased(valkey, clocks[1]) as spent:
        for bucket, lease in spent._leases.items():  # Redis refilled while the other was filled
            lease.level = asked._leases[bucket].level
        repeated = spent.repeated_charge(_CHARGES)
        assert isinstance(repeated, LeasedCharge)

        ended = False
        for step in (0.0, 0.0, 0.01, 0.3, 0.0, 0.2, 5.0) * 4:
            for clock in clocks:
                clock.advance(step)
            decision = asked.try_admit(_CHARGES)
            lines = repeated.charge()
            told = rate_limit_lines(decision) if decision is not None else None
            assert without_times(lines) == without_times(told)
            assert times(lines) == pytest.approx(times(told), abs=50)
            ended = ended or lines is None

        assert ended
        assert spent.statistics().admitted_by_lease == asked.statistics().admitted_by_lease


async def test_over_any_limiter_it_takes_nothing_that_is_refused() -> None:
    limiter = LocalRateLimiter(monotonic=Clock())
    charges = (Charge(rule=_RULES[0], bucket="b", amount=400),)
    repeated = limiter.repeated_charge(charges)

    told = [repeated.charge() for _ in range(3)]

    assert [lines is None for lines in told] == [False, False, True]
    left = limiter.try_admit((Charge(rule=_RULES[0], bucket="b", amount=200),))
    assert left.allowed


async def test_a_lease_of_a_rule_that_was_changed_is_not_spent(valkey: str) -> None:
    async with leased(valkey, Clock()) as limiter:
        halved = tuple(
            Charge(
                rule=msgspec.structs.replace(c.rule, capacity=c.rule.capacity // 2),
                bucket=c.bucket,
                amount=1,
            )
            for c in _CHARGES
        )

        assert limiter.repeated_charge(halved).charge() is None
        assert limiter.try_admit(halved) is None


async def test_once_asked_it_tells_of_the_rule_that_holds_now(valkey: str) -> None:
    async with leased(valkey, Clock()) as limiter:
        changed = tuple(
            Charge(rule=msgspec.structs.replace(c.rule, capacity=2_000), bucket=c.bucket, amount=1)
            for c in _CHARGES
        )

        decision = await limiter.admit(changed)
        lines = limiter.repeated_charge(changed).charge()

        assert {state.rule.capacity for state in decision.policies} == {2_000}
        assert lines is not None
        assert b"x-ratelimit-limit-requests: 2000\r\n" in lines


@given(
    capacity=st.integers(1, 1_000_000),
    available=st.integers(0, 1_000),
    level=st.floats(-1e6, 1e6),
    age=st.floats(0.0, 1e4),
    usable=st.floats(-1.0, 1.0),
    renew_below=st.integers(0, 1_000),
    amount=st.integers(1, 4),
)
def test_it_spends_and_shows_what_a_lease_does(
    capacity: int,
    available: int,
    level: float,
    age: float,
    usable: float,
    renew_below: int,
    amount: int,
) -> None:
    now = 20_000.0
    rule = Rule(name="minute", unit="requests", capacity=capacity, window=60.0)
    lease = Lease(rule, available, now + usable, level, now - age, renew_below=renew_below)
    alone, untouched = copy(lease), asdict(lease)
    renewed: list[Lease] = []
    repeated = LeasedCharge(
        [Charge(rule=rule, bucket="b", amount=amount)],
        [lease],
        lines=b"%d %d %d %b",
        monotonic=lambda: now,
        counts=LimiterStatistics(),
        renew=lambda _charges, leases, _now: renewed.extend(leases),
    )

    lines = repeated.charge()

    if available < amount or alone.usable_until <= now:
        assert (lines, asdict(lease)) == (None, untouched)
        return
    remaining, reset = alone.spend(amount, now)
    # Whole seconds are those of the milliseconds beside them, rounded up like these.
    seconds = ceil(ceil(reset * 1000) / 1000)
    assert lines == b"%d %d %d %b" % (remaining, seconds, remaining, go_duration(reset))
    assert asdict(lease) == asdict(alone)
    assert bool(renewed) == (alone.available < renew_below)


async def test_a_rule_in_shadow_mode_is_charged_and_not_shown(valkey: str) -> None:
    shadow = Rule(name="tried", unit="requests", capacity=1_000, window=60.0, shadow=True)
    charges = (*_CHARGES, Charge(rule=shadow, bucket="rl:{a}:t:tried", amount=1))
    async with leased(valkey, Clock(), charges) as limiter:
        held = limiter._leases["rl:{a}:t:tried"]
        before = held.available
        repeated = limiter.repeated_charge(charges)

        lines = [repeated.charge() for _ in range(before)]

        assert isinstance(repeated, LeasedCharge)
        assert lines[0] is not None
        assert b"tried" not in lines[0]
        assert (None in lines, held.available) == (False, 0)
        assert repeated.charge() is None


async def test_without_leases_a_rule_in_shadow_mode_is_left_to_the_limiter() -> None:
    limiter = LocalRateLimiter(monotonic=Clock())
    shadow = Rule(name="tried", unit="requests", capacity=1, window=60.0, shadow=True)
    repeated = limiter.repeated_charge((Charge(rule=shadow, bucket="b", amount=1),))

    assert repeated.charge() is None
    assert limiter.statistics().admitted_by_share == 0


async def test_a_refusal_is_counted_by_the_limiter_alone(valkey: str) -> None:
    month = Rule(name="month", unit="requests", capacity=3, period="month")
    charges = (Charge(rule=month, bucket="rl:{a}:t:month", amount=1),)
    async with leased(valkey, Clock(), charges) as limiter:
        refused = await limiter.admit(charges)
        repeated = limiter.repeated_charge(charges)

        lines = repeated.charge()

        assert isinstance(repeated, DelegatedCharge)
        assert (refused.allowed, lines, limiter.statistics().refused) == (False, None, 1)


async def test_charges_are_repeated_from_their_second_admission_until_the_lease_ends(
    valkey: str,
) -> None:
    clock = Clock()
    async with leased(valkey, clock) as limiter:
        repeated = RepeatedCharges(limiter.repeated_charge)

        before = repeated.charge(_CHARGES)
        repeated.add(_CHARGES)
        once = repeated.charge(_CHARGES)
        repeated.add(_CHARGES)
        admitted, equal = repeated.charge(_CHARGES), repeated.charge((*_CHARGES[:1], *_CHARGES[1:]))
        clock.advance(5.0)
        ended = repeated.charge(_CHARGES)

        assert (before, once, equal, ended) == (None, None, None, None)
        assert admitted is not None


async def test_charges_are_not_repeated_after_rules_may_have_changed(valkey: str) -> None:
    async with leased(valkey, Clock()) as limiter:
        repeated = RepeatedCharges(limiter.repeated_charge)
        repeated.add(_CHARGES)
        repeated.add(_CHARGES)

        repeated.clear()

        assert repeated.charge(_CHARGES) is None
