"""Results differ where a caller would see a difference."""

import msgspec
import numpy as np
import pytest

from sluicegate.backends.model_tools.comparing.results import (
    Entity,
    Results,
    compare_results,
    describe_difference,
)

ENTITY = Entity(label="PER", start=0, end=5, score=0.9)


def scores(*positive: float) -> Results:
    return Results(scores=[{"positive": p, "negative": 1 - p} for p in positive])


def test_another_first_label_is_another_answer() -> None:
    found = compare_results(scores(0.9, 0.4), scores(0.9, 0.6), tolerance=1e-3)

    assert found.changed == [1]
    assert found.largest == pytest.approx(0.2)
    assert "texts that differ      2" in describe_difference(found)


def test_a_tie_of_labels_is_no_change() -> None:
    found = compare_results(scores(0.50001), scores(0.49999), tolerance=1e-3)

    assert found.is_within(1e-3)


def test_scores_that_differ_by_more_than_the_tolerance_are_not_the_same() -> None:
    found = compare_results(scores(0.9), scores(0.95), tolerance=1e-3)

    assert not found.changed
    assert not found.is_within(1e-3)


def test_other_entities_are_another_answer() -> None:
    longer = Entity(label="PER", start=0, end=6, score=0.9)

    found = compare_results(
        Results(entities=[[ENTITY], [longer], []]),
        Results(entities=[[ENTITY], [ENTITY], [ENTITY]]),
        tolerance=1e-3,
    )

    assert found.changed == [1, 2]


def test_vectors_are_compared_by_their_cosine() -> None:
    here = np.eye(3, dtype=np.float32)
    there = here[[0, 1, 0]]

    found = compare_results(Results(vectors=here), Results(vectors=there), tolerance=1e-3)

    assert found.changed == [2]
    assert found.cosine == 0.0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    entity = msgspec.structs.replace(ENTITY, score=number)
    vectors = np.array([[1, 0], [number, 0]], np.float32)
    good = (scores(0.9), Results(entities=[[ENTITY]]), Results(vectors=np.eye(2, dtype=np.float32)))
    bad = (scores(number), Results(entities=[[entity]]), Results(vectors=vectors))

    for right, wrong in zip(good, bad, strict=True):
        with pytest.raises(ValueError, match="the model gives a number that is not finite"):
            compare_results(wrong, right, tolerance=1e-3)
        with pytest.raises(ValueError, match="the checkpoint's library gives a number"):
            compare_results(right, wrong, tolerance=1e-3)


def test_answers_of_another_model_are_named() -> None:
    other = Results(scores=[{"ham": 0.1, "spam": 0.9}])
    wide, narrow = (Results(vectors=np.ones((1, width), np.float32)) for width in (4, 3))

    with pytest.raises(ValueError, match=r"negative, positive, .* ham"):
        compare_results(scores(0.9), other, tolerance=1e-3)
    with pytest.raises(ValueError, match=r"4 values, .* 3"):
        compare_results(wide, narrow, tolerance=1e-3)
