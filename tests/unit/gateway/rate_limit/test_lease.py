"""A lease may be overdrawn by a little of a bucket that has plenty, until Redis has answered."""

import pytest

from sluicegate.gateway.rate_limit.lease import Lease, LeaseReservation, Leases
from sluicegate.gateway.types import CONCURRENT, Rule
from tests.support.limits import charge, rule


def known(level: float, *, unit: str = "requests") -> Lease:
    """Return the lease of a bucket of 1,000 units with so many left, heard of at 0 s."""
    lease = Lease(rule(1_000, unit=unit))
    lease.record_level(level=level, amount=0, now=0.0, ends=0.0)
    return lease


def test_a_fiftieth_of_the_limit_may_be_given_out() -> None:
    lease = known(1_000)

    assert lease.may_overdraw(20, 0.0)
    assert not lease.may_overdraw(21, 0.0)


def test_what_was_given_out_counts_until_redis_granted_as_much() -> None:
    lease = known(1_000)
    lease.overdraw(15)
    assert not lease.may_overdraw(6, 0.0)

    lease.add_grant(10, sent_at=0.0, now=0.0)

    assert (lease.overdrawn, lease.available) == (5, 0)
    assert lease.wanted(0, 1.0) == 1  # as for any 15 units spent in a second
    assert lease.may_overdraw(15, 0.0)


def test_nothing_is_given_out_of_a_bucket_that_is_less_than_half_full() -> None:
    assert known(500).may_overdraw(1, 0.0)
    assert not known(499).may_overdraw(1, 0.0)


def test_nothing_is_given_out_of_a_bucket_that_was_never_heard_of() -> None:
    assert not Lease(rule(1_000)).may_overdraw(1, 0.0)


def test_places_for_work_are_never_given_out() -> None:
    assert not known(1_000, unit=CONCURRENT).may_overdraw(1, 0.0)


@pytest.mark.parametrize(("unit", "kept"), [(CONCURRENT, 1), ("tokens", 0)])
def test_a_place_stays_held_though_redis_is_silent_and_units_that_refill_count_as_spent(
    unit: str, kept: int
) -> None:
    lease = known(1_000, unit=unit)
    lease.add_grant(0, sent_at=0.0, now=0.0)
    LeaseReservation(lease, 1, now=lambda: 0.0, on_settled=lambda _: None)

    assert lease.keep_reserved(100.0) == kept


@pytest.mark.parametrize(
    ("spent", "available", "overdrawn"),
    [
        pytest.param(2, 13, 0, id="less than reserved"),
        pytest.param(8, 7, 0, id="more than reserved"),
        pytest.param(18, 0, 3, id="more than the lease has"),
    ],
)
def test_a_lease_pays_what_work_spent_beyond_its_reservation(
    spent: int, available: int, overdrawn: int
) -> None:
    lease = known(1_000, unit="rows")
    lease.add_grant(10, sent_at=0.0, now=0.0)
    reservation = LeaseReservation(lease, 5, now=lambda: 0.0, on_settled=lambda _: None)

    reservation.settle(spent)

    assert (lease.available, lease.reserved, lease.overdrawn) == (available, 0, overdrawn)


def test_reserved_units_that_expired_are_not_settled() -> None:
    lease = known(1_000, unit="tokens")
    lease.add_grant(10, sent_at=0.0, now=0.0)
    reservation = LeaseReservation(lease, 5, now=lambda: 100.0, on_settled=lambda _: None)
    lease.keep_reserved(100.0)
    lease.add_grant(3, sent_at=100.0, now=100.0)

    reservation.settle(7)

    assert (lease.available, lease.reserved, lease.overdrawn) == (3, 0, 2)


def test_a_lease_ends_by_the_time_of_its_request() -> None:
    lease = known(1_000)

    lease.add_grant(10, sent_at=0.0, now=1.0)
    usable = [lease.usable(now) for now in (1.7, 1.9)]
    lease.add_grant(3, sent_at=1.9, now=2.0)

    assert usable == [10, 0]
    assert lease.usable(2.0) == 3


def test_only_as_much_as_redis_refused_is_refused_again() -> None:
    lease = known(50)

    lease.record_refusal(100, level=50, now=0.0)

    assert lease.refuses(100, 0.05)
    assert not lease.refuses(60, 0.05)


@pytest.mark.parametrize(("unit", "after"), [(CONCURRENT, 0.1), ("requests", 0.5)])
def test_a_free_place_is_idle_at_once_and_other_units_later(unit: str, after: float) -> None:
    lease = known(1_000, unit=unit)
    lease.add_grant(10, sent_at=0.0, now=0.0)
    lease.spend(1, 1.0)

    idle = [now for now in (0.1, 0.4, 0.5) if lease.is_idle(1.0 + now, 0.5)]

    assert idle[0] == after


def test_a_refusal_of_a_quota_that_is_repeated_says_when_it_ends() -> None:
    monthly = charge(of=Rule(name="monthly", unit="items", capacity=10, period="month"))
    leases = Leases()
    leases.of(monthly).record_level(level=0.0, amount=0, now=100.0, ends=60.0)

    assert leases.refusal([monthly], 110.0).retry_after == pytest.approx(50.0)
