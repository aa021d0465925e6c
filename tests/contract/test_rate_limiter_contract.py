"""What every rate limiter promises."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.rate_limit.base import Charge, Decision, RateLimiter
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.types import Rule
from testing.waiting import eventually, until
from tests.support.limits import LocalRateLimiter, charge, rule

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "redis"])
async def limiter(
    request: pytest.FixtureRequest, valkey: str, anyio_backend: str
) -> AsyncIterator[RateLimiter]:
    if request.param == "memory":
        yield LocalRateLimiter(monotonic=time.monotonic)
        return
    redis = connect(valkey, timeout=60.0)
    async with RedisRateLimiter(
        redis=redis, holder="worker", local_share=0.1, monotonic=time.monotonic
    ) as limiter:
        yield limiter
    await redis.aclose()


async def decide(limiter: RateLimiter, charges: list[Charge]) -> Decision:
    return limiter.try_admit(charges) or await limiter.admit(charges)


async def test_exactly_the_capacity_is_admitted_at_once(limiter: RateLimiter) -> None:
    decisions = [await decide(limiter, [charge(of=rule(100))]) for _ in range(150)]

    assert [decision.allowed for decision in decisions] == [True] * 100 + [False] * 50


async def test_exactly_the_capacity_is_admitted_to_many_at_once(limiter: RateLimiter) -> None:
    decisions = await asyncio.gather(*[limiter.admit([charge(of=rule(100))]) for _ in range(150)])

    assert sum(decision.allowed for decision in decisions) == 100


async def test_remaining_counts_down_to_nothing(limiter: RateLimiter) -> None:
    decisions = [await decide(limiter, [charge(of=rule(5))]) for _ in range(6)]

    assert [one.policies[0].remaining for one in decisions] == [4, 3, 2, 1, 0, 0]


async def test_all_charges_are_taken_or_none(limiter: RateLimiter) -> None:
    tenant, key = rule(10, name="minute"), rule(2, name="key_minute")
    both = [charge(of=tenant), charge(of=key, bucket="rl:{acme}:k:1:key_minute")]
    allowed = [(await decide(limiter, both)).allowed for _ in range(6)]

    refused = await decide(limiter, both)
    rest = [(await decide(limiter, [charge(of=tenant)])).allowed for _ in range(9)]

    assert allowed == [True, True, False, False, False, False]
    assert refused.violated == key
    assert [one.rule for one in refused.policies] == [tenant, key]
    assert rest == [True] * 8 + [False]


async def test_a_refusal_says_how_long_to_wait(limiter: RateLimiter) -> None:
    hourly = rule(60, window=3_600.0)
    await decide(limiter, [charge(60, of=hourly)])

    decision = await decide(limiter, [charge(of=hourly)])

    assert not decision.allowed
    assert decision.violated == hourly
    assert decision.retry_after == pytest.approx(60.0, abs=2.0)
    assert decision.policies[0].reset == pytest.approx(60.0, abs=2.0)
    assert not decision.impossible


async def test_more_than_a_bucket_holds_is_impossible_and_takes_nothing(
    limiter: RateLimiter,
) -> None:
    decision = await decide(limiter, [charge(101, of=rule(100))])

    assert not decision.allowed
    assert decision.impossible
    assert (await decide(limiter, [charge(100, of=rule(100))])).allowed


async def test_a_smaller_request_passes_where_a_larger_was_refused(limiter: RateLimiter) -> None:
    await decide(limiter, [charge(90, of=rule(100))])

    large = await decide(limiter, [charge(11, of=rule(100))])
    small = await decide(limiter, [charge(10, of=rule(100))])

    assert (large.allowed, small.allowed) == (False, True)


async def test_tenants_do_not_share_buckets(limiter: RateLimiter) -> None:
    await decide(limiter, [charge(100)])

    assert not (await decide(limiter, [charge()])).allowed
    assert (await decide(limiter, [charge(bucket="rl:{globex}:t:minute")])).allowed


async def test_nothing_to_charge_is_admitted(limiter: RateLimiter) -> None:
    assert (await decide(limiter, [])).allowed
    assert (await decide(limiter, [charge(0)])).allowed


async def test_a_bucket_refills(limiter: RateLimiter) -> None:
    quick = rule(10_000, window=60.0)
    assert (await decide(limiter, [charge(10_000, of=quick)])).allowed
    assert not (await decide(limiter, [charge(10_000, of=quick)])).allowed

    await until(lambda: limiter.statistics().leased == 0)
    for _ in range(1_000):
        decision = await decide(limiter, [charge(of=quick)])
        if decision.allowed:
            return
        await until_monotonic(time.monotonic() + decision.retry_after)
    pytest.fail("the bucket did not refill")


async def until_monotonic(moment: float) -> None:
    await until(lambda: time.monotonic() >= moment)


async def test_a_rule_in_shadow_mode_refuses_nothing_and_is_not_shown(
    limiter: RateLimiter,
) -> None:
    watched = msgspec.structs.replace(rule(3, name="trial"), shadow=True)
    both = [charge(of=rule(100)), charge(of=watched, bucket="rl:{acme}:t:trial")]

    decisions = [await decide(limiter, both) for _ in range(8)]

    assert all(decision.allowed for decision in decisions)
    assert [bool(decision.shadowed) for decision in decisions] == [False] * 3 + [True] * 5
    assert decisions[-1].shadowed == (watched,)
    assert {state.rule.name for one in decisions for state in one.policies} == {"minute"}
    assert limiter.statistics().shadowed == 5


async def test_what_only_a_rule_in_shadow_mode_lacks_is_charged_to_the_others(
    limiter: RateLimiter,
) -> None:
    watched = msgspec.structs.replace(rule(3, name="trial"), shadow=True)
    both = [charge(of=rule(10)), charge(of=watched, bucket="rl:{acme}:t:trial")]

    allowed = [(await decide(limiter, both)).allowed for _ in range(12)]

    assert allowed == [True] * 10 + [False] * 2


async def test_a_quota_is_refilled_at_the_months_end_and_not_before(limiter: RateLimiter) -> None:
    monthly = Rule(name="monthly", unit="items", capacity=50, period="month")

    decisions = [await decide(limiter, [charge(10, of=monthly)]) for _ in range(6)]

    now = utc_now()
    month_end = (now.replace(day=28) + timedelta(days=4)).replace(day=1, hour=0, minute=0, second=0)
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
    assert [one.policies[0].remaining for one in decisions] == [40, 30, 20, 10, 0, 0]
    left = (month_end - now).total_seconds()
    assert decisions[-1].retry_after == pytest.approx(left, abs=5.0)
    assert decisions[0].policies[0].reset == pytest.approx(left, abs=5.0)


async def test_a_quota_of_a_day_is_refilled_at_midnight(limiter: RateLimiter) -> None:
    daily = Rule(name="daily", unit="tokens", capacity=20, period="day")

    decisions = [await decide(limiter, [charge(10, of=daily)]) for _ in range(3)]

    left = 86_400 - utc_now().timestamp() % 86_400
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert decisions[-1].retry_after == pytest.approx(left, abs=5.0)


async def test_a_rate_that_becomes_a_quota_begins_full(limiter: RateLimiter) -> None:
    quota = Rule(name="minute", unit="requests", capacity=100, period="month")
    await decide(limiter, [charge(100)])

    decisions = [await decide(limiter, [charge(100, of=quota)]) for _ in range(2)]

    assert [decision.allowed for decision in decisions] == [True, False]


async def test_so_much_may_be_under_way_at_a_time_and_no_more(limiter: RateLimiter) -> None:
    places = [charge(1, is_reserved=True, of=Rule(name="running", unit="concurrent", capacity=3))]
    first = [await decide(limiter, places) for _ in range(5)]

    first[0].reservations[0].settle(0)
    await until(lambda: limiter.statistics().leased == 0)
    after = [await wait_for_place(limiter, places), await decide(limiter, places)]

    assert [decision.allowed for decision in first] == [True] * 3 + [False] * 2
    assert first[-1].retry_after == pytest.approx(1.0)
    assert [decision.allowed for decision in after] == [True, False]


async def test_what_was_held_and_not_spent_goes_back(limiter: RateLimiter) -> None:
    tokens = Rule(name="tokens", unit="tokens", capacity=100, window=3_600.0)
    one = await decide(limiter, [charge(80, of=tokens, is_reserved=True)])
    meanwhile = await decide(limiter, [charge(30, of=tokens, is_reserved=True)])

    one.reservations[0].settle(10)
    one.reservations[0].settle(10)
    after = await decide(limiter, [charge(90, of=tokens, is_reserved=True)])

    assert (one.allowed, meanwhile.allowed, after.allowed) == (True, False, True)
    assert not (await decide(limiter, [charge(1, of=tokens, is_reserved=True)])).allowed


async def test_work_that_needs_more_than_it_reserved_pays_for_all_of_it(
    limiter: RateLimiter,
) -> None:
    tokens = Rule(name="tokens", unit="tokens", capacity=100, window=3_600.0)
    one = await decide(limiter, [charge(10, of=tokens, is_reserved=True)])

    one.reservations[0].settle(60)
    after = [await decide(limiter, [charge(of=tokens)]) for _ in range(50)]

    assert [decision.allowed for decision in after] == [True] * 40 + [False] * 10


async def test_what_goes_back_first_repays_what_a_lowered_limit_lacks(
    limiter: RateLimiter,
) -> None:
    high, low = rule(100, unit="tokens"), rule(10, unit="tokens")
    held = await decide(limiter, [charge(80, of=high, is_reserved=True)])
    lowered = await decide(limiter, [charge(1, of=low)])

    held.reservations[0].settle(0)
    of_low = await wait_for_place(limiter, [charge(10, of=low)])
    of_high = [await decide(limiter, [charge(amount, of=high)]) for amount in (90, 10)]

    assert (lowered.allowed, of_low.allowed) == (False, True)
    assert [decision.allowed for decision in of_high] == [True, False]


async def test_what_goes_back_is_free_only_once_all_beyond_the_limit_is_repaid(
    limiter: RateLimiter,
) -> None:
    high, low = rule(100, unit="tokens"), rule(10, unit="tokens")
    await decide(limiter, [charge(60, of=high)])
    held = await decide(limiter, [charge(20, of=high, is_reserved=True)])
    await decide(limiter, [charge(1, of=low)])

    held.reservations[0].settle(0)
    of_high = [await decide(limiter, [charge(amount, of=high)]) for amount in (41, 40)]

    assert [decision.allowed for decision in of_high] == [False, True]


async def test_work_that_a_shadow_limit_would_refuse_holds_no_place(limiter: RateLimiter) -> None:
    watched = Rule(name="trial", unit="concurrent", capacity=1, shadow=True)
    place = [charge(of=watched, is_reserved=True)]
    first, beyond = [await decide(limiter, place) for _ in range(2)]

    async def is_free() -> bool:
        return not (await decide(limiter, place)).shadowed

    first.reservations[0].settle(0)

    assert (bool(first.shadowed), bool(beyond.shadowed)) == (False, True)
    await eventually(is_free)


async def wait_for_place(limiter: RateLimiter, charges: list[Charge]) -> Decision:
    """Ask until a refusal that was heard a moment ago is no longer repeated."""
    deadline = time.monotonic() + 5.0
    while not (decision := await decide(limiter, charges)).allowed:
        assert time.monotonic() < deadline
        await until_monotonic(time.monotonic() + 0.02)
    return decision


async def test_a_lowered_limit_admits_no_more_than_it_says(limiter: RateLimiter) -> None:
    before = [await decide(limiter, [charge(of=rule(1000))]) for _ in range(500)]

    after = [await decide(limiter, [charge(of=rule(2))]) for _ in range(10)]

    assert all(decision.allowed for decision in before)
    assert sum(decision.allowed for decision in after) <= 2


async def test_a_raised_limit_admits_the_difference_at_once(limiter: RateLimiter) -> None:
    before = [await decide(limiter, [charge(of=rule(2))]) for _ in range(4)]

    after = [await decide(limiter, [charge(of=rule(1000))]) for _ in range(1001)]

    assert sum(decision.allowed for decision in before) == 2
    assert sum(decision.allowed for decision in after) == 998


async def test_what_was_used_stays_used_through_changes_of_the_limit(limiter: RateLimiter) -> None:
    high, low = [charge(of=rule(1000))], [charge(of=rule(2))]
    admitted = sum([(await decide(limiter, high)).allowed for _ in range(500)])

    for _ in range(20):
        admitted += sum([(await decide(limiter, low)).allowed for _ in range(3)])
        admitted += sum([(await decide(limiter, high)).allowed for _ in range(100)])

    assert 990 <= admitted <= 1002


async def test_a_quota_that_is_raised_admits_the_difference_at_once(limiter: RateLimiter) -> None:
    small = msgspec.structs.replace(rule(3, window=0.0), period="month")
    large = msgspec.structs.replace(small, capacity=10)
    used = [await decide(limiter, [charge(of=small)]) for _ in range(5)]

    more = [await decide(limiter, [charge(of=large)]) for _ in range(10)]

    assert sum(decision.allowed for decision in used) == 3
    assert sum(decision.allowed for decision in more) == 7


async def test_a_quota_that_is_lowered_leaves_what_was_not_used_of_it(limiter: RateLimiter) -> None:
    large = msgspec.structs.replace(rule(100, window=0.0), period="month")
    small = msgspec.structs.replace(large, capacity=60)
    for _ in range(10):
        await decide(limiter, [charge(of=large)])

    lowered = [(await decide(limiter, [charge(of=small)])).allowed for _ in range(55)]
    raised = [(await decide(limiter, [charge(of=large)])).allowed for _ in range(45)]

    assert (sum(lowered), sum(raised)) == (50, 40)


async def test_decisions_are_counted(limiter: RateLimiter) -> None:
    for _ in range(12):
        await decide(limiter, [charge(of=rule(10))])

    counts = limiter.statistics()
    admitted = counts.admitted_by_lease + counts.admitted_by_redis + counts.admitted_by_share
    assert (admitted, counts.refused) == (10, 2)


async def test_a_repeated_charge_takes_what_the_limiter_would_and_never_more(
    limiter: RateLimiter,
) -> None:
    charges = [charge(of=rule(100))]
    repeated = limiter.repeated_charge(charges)

    admitted = 0
    for _ in range(150):
        lines = repeated.charge()
        assert lines is None or b"x-ratelimit-limit-requests: 100\r\n" in lines
        admitted += lines is not None or (await limiter.admit(charges)).allowed
        if lines is None:
            repeated = limiter.repeated_charge(charges)

    assert admitted == 100
    assert repeated.charge() is None
