"""The gate counts what changed, and accepts only what stays within its bounds."""

import numpy as np
import pytest

from backends.qualification.gate import Bounds, judge

REFERENCE = np.eye(4, dtype=np.float32)[np.arange(100) % 4]
EXPECTED = [number % 4 for number in range(100)]


def flipped(rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    changed = REFERENCE.copy()
    changed[:rows] = np.roll(changed[:rows], 1, axis=1)
    return changed


def test_equal_logits_are_accepted() -> None:
    verdict = judge(REFERENCE, REFERENCE, expected=EXPECTED, bounds=Bounds())

    assert not verdict.reasons
    assert (verdict.rows, verdict.flips, verdict.logit_worst) == (100, 0.0, 0.0)
    assert verdict.accuracy_before == verdict.accuracy_after == 1.0


def test_flips_over_the_bound_are_refused_with_their_number() -> None:
    verdict = judge(REFERENCE, flipped(2), bounds=Bounds(flips=0.01))

    assert verdict.reasons
    assert verdict.reasons == ["2.00% of labels flip, 1.00% may"]


def test_accuracy_may_rise_but_not_fall() -> None:
    bounds = Bounds(flips=1.0)

    worse = judge(REFERENCE, flipped(1), expected=EXPECTED, bounds=bounds)
    better = judge(flipped(1), REFERENCE, expected=EXPECTED, bounds=bounds)

    assert worse.reasons == ["accuracy falls by 1.00 points, 0.30 may"]
    assert not better.reasons


def test_logits_have_a_bound_of_their_own() -> None:
    moved = REFERENCE + np.float32(0.25)

    assert not judge(REFERENCE, moved, bounds=Bounds()).reasons
    assert judge(REFERENCE, moved, bounds=Bounds(logit=0.2)).reasons == [
        "a logit moves by 0.25, 0.2 is allowed"
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    broken = REFERENCE.copy()
    broken[0, 0] = value

    assert "a logit is no number" in judge(REFERENCE, broken, bounds=Bounds()).reasons
