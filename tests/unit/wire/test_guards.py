"""Of many scores, only the best are kept, and they say what is unknown about the others."""

import math

import pytest

from sluicegate.wire.guards import DetectorScores, best_scores


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_a_label_that_is_left_out_scored_below_the_least_score(least: float) -> None:
    scores = DetectorScores({"a": 0.5, "b": 0.7, "c": 0.5}, least)

    found = best_scores(scores, 2)

    # A threshold of 0.5 would find `c`, too.
    assert found == DetectorScores({"b": 0.7, "a": 0.5}, math.nextafter(0.5, 1.0))


def test_few_scores_are_kept() -> None:
    scores = DetectorScores({"a": 0.5}, 0.2)

    assert best_scores(scores, 1) is scores
