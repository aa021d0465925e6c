"""The rate limiter of one process, with time in the test's hand."""

import pytest
from hypothesis import given, strategies as st

from sluicegate.gateway.rate_limit.memory import MemoryRateLimiter
from sluicegate.gateway.types import Rule
from tests.support.clock import Clock
from tests.support.limits import charge, most_over_the_limit, rule


@given(
    capacity=st.integers(1, 50),
    window=st.floats(0.1, 100.0),
    steps=st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 60)), max_size=60),
)
def test_no_window_has_more_than_capacity_and_refill(
    capacity: int, window: float, steps: list[tuple[float, int]]
) -> None:
    limit = rule(capacity, window=window)
    clock = Clock()
    limiter = MemoryRateLimiter(monotonic=clock)
    admitted = []

    for pause, amount in steps:
        clock.advance(pause)
        if limiter.try_admit([charge(amount, of=limit)]).allowed:
            admitted.append((clock(), amount))

    assert not admitted or most_over_the_limit(admitted, limit) <= 1e-3


@given(st.integers(1, 50), st.floats(0.1, 100.0), st.integers(1, 50))
def test_whoever_waits_as_told_is_admitted(capacity: int, window: float, amount: int) -> None:
    limit = rule(capacity, window=window)
    clock = Clock()
    limiter = MemoryRateLimiter(monotonic=clock)
    limiter.try_admit([charge(capacity, of=limit)])

    refused = limiter.try_admit([charge(min(amount, capacity), of=limit)])
    clock.advance(refused.retry_after)

    assert not refused.allowed
    assert limiter.try_admit([charge(min(amount, capacity), of=limit)]).allowed


def test_an_idle_bucket_fills_up_to_its_capacity_and_no_further() -> None:
    clock = Clock()
    limiter = MemoryRateLimiter(monotonic=clock)
    limit = rule(10, window=10.0)
    limiter.try_admit([charge(10, of=limit)])

    clock.advance(1_000.0)

    assert [limiter.try_admit([charge(of=limit)]).allowed for _ in range(11)] == [True] * 10 + [
        False
    ]


def test_a_share_is_that_part_of_capacity_and_refill() -> None:
    clock = Clock()
    limiter = MemoryRateLimiter(monotonic=clock, fraction=0.1)
    limit = rule(100, window=10.0)

    at_once = sum(limiter.try_admit([charge(of=limit)]).allowed for _ in range(100))
    clock.advance(5.0)
    later = sum(limiter.try_admit([charge(of=limit)]).allowed for _ in range(100))

    assert (at_once, later) == (10, 5)


def test_a_share_of_a_changed_limit_changes_by_its_part() -> None:
    clock = Clock()
    limiter = MemoryRateLimiter(monotonic=clock, fraction=0.1)
    low, high = rule(100, window=100.0), rule(200, window=100.0)

    def admitted(limit: Rule) -> int:
        return sum(limiter.try_admit([charge(of=limit)]).allowed for _ in range(50))

    used, raised, lowered = admitted(low), admitted(high), admitted(low)
    clock.advance(50.0)
    raised_again = admitted(high)

    # In 50 s, 5 of the units refilled that were in use beyond the lowered limit, and 5 of it.
    assert (used, raised, lowered, raised_again) == (10, 10, 0, 10)


def test_a_share_says_how_long_it_takes_to_refill() -> None:
    limiter = MemoryRateLimiter(monotonic=Clock(), fraction=0.1)
    limit = rule(100, window=10.0)
    limiter.try_admit([charge(10, of=limit)])

    refused = limiter.try_admit([charge(5, of=limit)])

    assert refused.retry_after == pytest.approx(5.0)


def test_a_quota_that_begins_anew_leaves_out_what_work_still_holds() -> None:
    wall = Clock(30 * 86_400.0)  # the 31st of January 1970
    limiter = MemoryRateLimiter(monotonic=Clock(), wall=wall)
    monthly = Rule(name="monthly", unit="tokens", capacity=10, period="month")
    held = limiter.try_admit([charge(6, of=monthly, is_reserved=True)])

    wall.advance(2 * 86_400.0)
    at_most = [limiter.try_admit([charge(of=monthly)]).allowed for _ in range(5)]
    held.reservations[0].settle(6)

    assert at_most == [True] * 4 + [False]
    assert not limiter.try_admit([charge(of=monthly)]).allowed


def test_a_rate_that_becomes_a_quota_is_refilled_when_the_period_ends() -> None:
    wall = Clock(1_000_000.0)
    limiter = MemoryRateLimiter(monotonic=Clock(), wall=wall)
    limiter.try_admit([charge(10, of=Rule(name="own", unit="tokens", capacity=10, window=60.0))])
    quota = Rule(name="own", unit="tokens", capacity=10, period="month")

    decisions = [limiter.try_admit([charge(10, of=quota)]) for _ in range(2)]
    wall.advance(decisions[-1].retry_after)

    assert [decision.allowed for decision in decisions] == [True, False]
    assert limiter.try_admit([charge(10, of=quota)]).allowed


def test_a_quota_that_begins_anew_owes_nothing_of_the_last_month() -> None:
    wall = Clock(30 * 86_400.0)  # the 31st of January 1970
    limiter = MemoryRateLimiter(monotonic=Clock(), wall=wall)
    high = Rule(name="monthly", unit="tokens", capacity=100, period="month")
    low = Rule(name="monthly", unit="tokens", capacity=10, period="month")
    limiter.try_admit([charge(50, of=high)])
    limiter.try_admit([charge(1, of=low)])

    wall.advance(2 * 86_400.0)
    of_low = limiter.try_admit([charge(10, of=low)])
    of_high = limiter.try_admit([charge(90, of=high)])

    assert (of_low.allowed, of_high.allowed) == (True, True)


def test_a_share_of_a_small_limit_is_one_unit_and_of_nothing_nothing() -> None:
    limiter = MemoryRateLimiter(monotonic=Clock(), fraction=0.1)

    small = [limiter.try_admit([charge(of=rule(5))]).allowed for _ in range(2)]
    none = limiter.try_admit([charge(of=rule(0), bucket="rl:{acme}:t:none")])

    assert small == [True, False]
    assert not none.allowed
    assert none.impossible


def test_what_only_the_share_cannot_hold_may_be_tried_again() -> None:
    limiter = MemoryRateLimiter(monotonic=Clock(), fraction=0.1)

    decision = limiter.try_admit([charge(50, of=rule(100))])

    assert not decision.allowed
    assert not decision.impossible


def test_full_buckets_are_forgotten_and_used_or_held_ones_not() -> None:
    clock = Clock()
    limiter = MemoryRateLimiter(monotonic=clock)
    slow, quick = rule(10, window=10_000.0), rule(10, window=1.0)
    limiter.try_admit([charge(10, of=slow, bucket="rl:{slow}:t:minute")])
    place = charge(of=Rule(name="running", unit="concurrent", capacity=1), is_reserved=True)
    limiter.try_admit([place])

    for number in range(20_000):
        clock.advance(0.001)
        limiter.try_admit([charge(of=quick, bucket=f"rl:{{{number}}}:t:minute")])

    assert len(limiter._buckets) < 10_000
    assert not limiter.try_admit([charge(10, of=slow, bucket="rl:{slow}:t:minute")]).allowed
    assert not limiter.try_admit([place]).allowed
