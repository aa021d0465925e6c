"""Tests what the failovers of the state Redis are judged by."""

from collections import Counter

import msgspec
import pytest

from loadtests.chaos_sentinel import (
    FailoverResult,
    LedgerComparison,
    compare,
    over_admission_bound,
    violations,
)

_RIGHT = LedgerComparison(answered=3, missing=0, surplus=0, twice=0)
_RESULT = FailoverResult(away=2.7, answered=3, refused=0, failed=0, slowest=0.1, over=50.0)


def test_a_failover_is_judged_by_the_seconds_that_it_took() -> None:
    """Of 90 and 71, one is a gateway that admits all, the other one of twice the local share."""
    assert over_admission_bound(2.7) == pytest.approx(55.7, abs=0.1)
    assert violations([_RESULT], _RIGHT) == []
    for over in (90.0, 71.0):
        result = msgspec.structs.replace(_RESULT, over=over)
        assert violations([result], _RIGHT) == [f"kill 1: over by {over}"]
    slow = msgspec.structs.replace(_RESULT, over=71.0, away=8.0)
    assert violations([slow], _RIGHT) == []


def test_answers_and_ledger_are_compared_id_by_id() -> None:
    one, two = ("req_1", 200), ("req_2", 429)

    assert compare(Counter([one, two]), Counter([one, two])) == LedgerComparison(
        answered=2, missing=0, surplus=0, twice=0
    )
    shared = compare(Counter([one, one]), Counter([one]))
    doubled = compare(Counter([one]), Counter([one, one]))
    other = compare(Counter([one]), Counter([two]))
    assert (shared.missing, doubled.surplus, doubled.twice) == (1, 1, 1)
    assert (other.missing, other.surplus) == (1, 1)
    for wrong in (shared, doubled, other):
        assert violations([], wrong) == ["the ledger differs from the answers"]
