"""A lease may be overdrawn by a little of a bucket that has plenty, until Redis has answered."""

import pytest

from gateway.rate_limit.lease import Lease, LeaseReservation
from gateway.types import CONCURRENT
from tests.support.limits import rule


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
    ("spent", "available"),
    [
        pytest.param(2, 13, id="less than reserved"),
        pytest.param(8, 7, id="more than reserved"),
        pytest.param(16, 0, id="more than the lease has"),
    ],
)
def test_a_lease_pays_what_work_spent_beyond_its_reservation(spent: int, available: int) -> None:
    lease = known(1_000, unit="rows")
    lease.add_grant(10, sent_at=0.0, now=0.0)
    reservation = LeaseReservation(lease, 5, now=lambda: 0.0, on_settled=lambda _: None)

    reservation.settle(spent)

    assert (lease.available, lease.reserved) == (available, 0)
