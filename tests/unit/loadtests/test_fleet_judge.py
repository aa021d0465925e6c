"""Failovers of a fleet are judged by bounds that depend only on the time without Redis."""

import msgspec
import pytest

from loadtests.faults.fleet import (
    LONGEST_BILLING,
    LONGEST_CHANGE,
    Failovers,
    allowed_over,
    broken,
)
from loadtests.faults.process_faults import LONGEST_FAILOVER
from loadtests.faults.processes import RULE
from loadtests.windows import bound_ahead

_RIGHT = Failovers(
    ledger_away=3.2,
    billed_after=4.4,
    redis_away=2.7,
    confirmed=["new-1"],
    refused=8,
    wrong=[],
    slowest_change=5.0,
    lost=[],
    unready=0,
)


def test_a_round_in_which_all_holds_is_right() -> None:
    assert list(broken(_RIGHT, over=100.0, share=0.9)) == []


def test_windows_are_judged_by_the_seconds_without_redis() -> None:
    """Four workers that would admit twice their share are found, and so is one that admits all."""
    assert allowed_over(2.7) == pytest.approx(109.3, abs=0.1)
    for over in (110.0, 150.0):
        assert len(list(broken(_RIGHT, over=over, share=0.9))) == 1


def test_a_tenant_that_is_refused_everything_is_found() -> None:
    assert len(list(broken(_RIGHT, over=0.0, share=0.49))) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("redis_away", LONGEST_FAILOVER + 1),
        ("billed_after", LONGEST_BILLING + 1),
        ("slowest_change", LONGEST_CHANGE + 1),
        ("wrong", ["409"]),
        ("lost", ["new-1"]),
        ("unready", 1),
        ("confirmed", []),
    ],
)
def test_each_claim_about_a_round_is_judged(field: str, value: object) -> None:
    seen = msgspec.structs.replace(_RIGHT, **{field: value})

    assert len(list(broken(seen, over=100.0, share=0.9))) == 1


def test_nothing_is_allowed_ahead_of_a_redis_that_was_in_time() -> None:
    assert bound_ahead(RULE, workers=4, by_share=0.0) == 0.0
    assert bound_ahead(RULE, workers=4, by_share=3.0) == 3.0
    assert bound_ahead(RULE, workers=4, by_share=1000.0) == 8.0
