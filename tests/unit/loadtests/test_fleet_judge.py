"""Tests what the failovers of a fleet are judged by."""

import msgspec
import pytest

from gateway.types import Rule
from loadtests.chaos_sentinel import LedgerComparison
from loadtests.fleet.faults import Fault
from loadtests.fleet.judging import (
    LONGEST_BILLING,
    LONGEST_CHANGE,
    LONGEST_REDIS,
    RoundResult,
    TenantWindows,
    allowed_over,
    final_problems,
    problems,
)
from loadtests.windows import bound_ahead

_RULE = Rule(name="minute", unit="requests", capacity=100, window=6.0)
_RIGHT = RoundResult(
    fault=Fault.KILLED,
    ledger_away=3.2,
    billed_after=4.4,
    redis_away=2.7,
    answered=2348,
    refused=1421,
    free_refused=0,
    failed=0,
    slowest_before=0.1,
    slowest=0.1,
    windows=[TenantWindows(rule=_RULE, over=100.0, share=0.9)],
    changes=35,
    changes_refused=8,
    changes_wrong={},
    slowest_change=5.0,
    unready=0,
    without_ledger=30,
)
_SAME = LedgerComparison(answered=3, missing=0, surplus=0, twice=0)


def test_a_round_in_which_all_holds_is_right() -> None:
    assert problems(_RIGHT) == []
    assert final_problems(_SAME, lost_changes=[]) == []


def test_windows_are_judged_by_the_seconds_without_redis() -> None:
    """Four workers that would admit twice their share are found, and so is one that admits all."""
    assert allowed_over(_RULE, redis_away=2.7) == pytest.approx(109.3, abs=0.1)
    for over in (110.0, 150.0):
        windows = [TenantWindows(rule=_RULE, over=over, share=0.9)]
        result = msgspec.structs.replace(_RIGHT, windows=windows)
        assert problems(result) == [f"over 100 by {over}"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failed", 1),
        ("redis_away", LONGEST_REDIS + 1),
        ("billed_after", LONGEST_BILLING + 1),
        ("slowest_change", LONGEST_CHANGE + 1),
        ("changes_wrong", {"409": 1}),
        ("unready", 1),
        ("free_refused", 1),
        ("changes", 0),
        ("windows", [TenantWindows(rule=_RULE, over=0.0, share=0.49)]),
    ],
)
def test_each_claim_about_a_round_is_judged(field: str, value: object) -> None:
    assert len(problems(msgspec.structs.replace(_RIGHT, **{field: value}))) == 1


@pytest.mark.parametrize("field", ["missing", "surplus", "twice"])
def test_a_ledger_that_differs_from_the_answers_is_found(field: str) -> None:
    differs = msgspec.structs.replace(_SAME, **{field: 1})

    assert len(final_problems(differs, lost_changes=[])) == 1


def test_a_confirmed_change_that_is_lost_is_named() -> None:
    assert final_problems(_SAME, lost_changes=["new-1"]) == ["confirmed changes are lost: new-1"]


def test_nothing_is_allowed_ahead_of_a_redis_that_was_in_time() -> None:
    assert bound_ahead(_RULE, workers=4, by_share=0.0) == 0.0
    assert bound_ahead(_RULE, workers=4, by_share=3.0) == 3.0
    assert bound_ahead(_RULE, workers=4, by_share=1000.0) == 8.0
