"""The gate counts what changed, and accepts only what stays within its bounds."""

import numpy as np
import pytest

from sluicegate.backends.qualification.gate import Bounds, Verdict, at_most, judge, units_needed
from sluicegate.backends.types import FloatArray

REFERENCE = np.eye(4, dtype=np.float32)[np.arange(1000) % 4]
EXPECTED = [number % 4 for number in range(1000)]


def flipped(rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    changed = REFERENCE.copy()
    changed[:rows] = np.roll(changed[:rows], 1, axis=1)
    return changed


def test_equal_logits_are_accepted() -> None:
    verdict = judge(REFERENCE, REFERENCE, expected=EXPECTED, bounds=Bounds())

    assert not verdict.reasons
    assert (verdict.rows, verdict.flips, verdict.logit_worst) == (1000, 0.0, 0.0)
    assert verdict.accuracy_before == verdict.accuracy_after == 1.0


def test_flips_over_the_bound_are_refused_with_their_number() -> None:
    verdict = judge(REFERENCE, flipped(20), bounds=Bounds(flips=0.01))

    assert verdict.reasons
    assert verdict.reasons == ["2.00% of labels flip, but only 1.00% may"]


def test_accuracy_may_rise_but_not_fall() -> None:
    bounds = Bounds(flips=1.0)

    worse = judge(REFERENCE, flipped(10), expected=EXPECTED, bounds=bounds)
    better = judge(flipped(10), REFERENCE, expected=EXPECTED, bounds=bounds)

    assert worse.reasons == ["accuracy falls by 1.00 points, but at most 0.30 are allowed"]
    assert not better.reasons


def test_logits_have_a_bound_of_their_own() -> None:
    moved = REFERENCE + np.float32(0.25)

    assert not judge(REFERENCE, moved, bounds=Bounds()).reasons
    assert judge(REFERENCE, moved, bounds=Bounds(logit=0.2)).reasons == [
        "a logit changes by 0.25, but at most 0.2 is allowed"
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    broken = REFERENCE.copy()
    broken[0, 0] = value

    assert "a logit is NaN or infinite" in judge(REFERENCE, broken, bounds=Bounds()).reasons


def test_so_few_texts_that_the_bound_might_be_broken_are_refused() -> None:
    """29 texts of which none flips are refused, 268 are the fewest that show 1 % at most."""
    few = judge(REFERENCE[:29], REFERENCE[:29], bounds=Bounds())
    enough = judge(REFERENCE[:268], REFERENCE[:268], bounds=Bounds())

    assert "8.53%; use 268 or more texts" in few.reasons[0]
    assert not enough.reasons


@pytest.mark.parametrize("share", [0.0, 0.002, 0.005, 0.009])
def test_as_many_texts_as_are_named_are_just_enough(share: float) -> None:
    needed = units_needed(share, 0.01)

    assert at_most(share, needed) <= 0.01 < at_most(share, needed - 1)


def test_tokens_of_a_text_are_no_texts_of_their_own() -> None:
    """A thousand tokens of ten texts are ten texts."""
    owners = np.repeat(np.arange(10), 100).astype(np.int32)
    shown = judge(REFERENCE, flipped(50), measure="tokens", owners=owners, bounds=Bounds())

    assert (shown.rows, shown.flips) == (10, 0.05)


def test_a_span_moves_where_another_token_starts_or_ends_it() -> None:
    """Whether a token is rather a start than an end does not matter."""
    owners = np.repeat(np.arange(100, dtype=np.int32), 4)
    reference = np.tile(np.array([[3, 0], [1, 1], [0, 2], [0, 3]], np.float32), (100, 1))
    shifted, moved = reference + np.array([0.0, 2.0], np.float32), reference.copy()
    moved[:4, 1] = [0, 1, 4, 3]

    def share(candidate: FloatArray) -> float:
        verdict = judge(
            reference, candidate, bounds=Bounds(flips=1.0), measure="spans", owners=owners
        )
        return verdict.flips

    assert (share(shifted), share(moved)) == (0.0, 0.01)


def test_an_order_changes_where_another_document_is_first_or_pairs_swap() -> None:
    owners = np.repeat(np.arange(300), 3).astype(np.int32)
    scores = np.tile(np.array([3.0, 2.0, 1.0], np.float32), 300)[:, None]
    first, second, tied = scores.copy(), scores.copy(), scores.copy()
    first[:2] = first[1::-1]
    second[1:3] = second[2:0:-1]
    tied[1] = 3.0 - 1e-8

    def compare(candidate: FloatArray, reference: FloatArray = scores) -> Verdict:
        return judge(reference, candidate, measure="order", owners=owners, bounds=Bounds(flips=1))

    assert (compare(first).flips, compare(first).swaps) == (1 / 300, 1 / 900)
    assert (compare(second).flips, compare(second).swaps) == (0, 1 / 900)
    assert compare(first, tied).rows == 300


def test_vectors_are_judged_by_their_cosine_and_nearest_neighbours() -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((400, 8)).astype(np.float32)
    noisy = vectors + 0.5 * random.standard_normal((400, 8)).astype(np.float32)

    same = judge(vectors, 2 * vectors, measure="vectors", bounds=Bounds())
    apart = judge(vectors, noisy, measure="vectors", bounds=Bounds())

    assert not same.reasons
    assert "of nearest neighbours change" in apart.reasons[0]
    assert "cosine" in apart.reasons[1]


def test_a_vector_that_is_no_number_is_refused() -> None:
    broken = REFERENCE[:300].copy()
    broken[5] = np.nan

    reasons = judge(REFERENCE[:300], broken, measure="vectors", bounds=Bounds(flips=1)).reasons

    assert any("cosine" in reason for reason in reasons)
