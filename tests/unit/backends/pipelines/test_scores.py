"""Arithmetic from logits to answers."""

import numpy as np
import pytest

from sluicegate.backends.pipelines.scores import (
    apply_function,
    best_first,
    best_labels,
    exact,
    gelu,
    label_scores,
    normalize,
    rounded,
    sigmoid,
    softmax,
)
from sluicegate.wire.protocol import Function


def test_softmax_stands_logits_of_any_size() -> None:
    logits = np.array([[1e4, 0.0], [-1e4, -1e4]], dtype=np.float32)

    assert softmax(logits).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_sigmoid_stands_logits_of_any_size() -> None:
    assert sigmoid(np.array([-1e4, 0.0, 1e4], dtype=np.float32)).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("labels", [3, 64])
def test_small_probabilities_stay_apart(labels: int) -> None:
    logits = np.linspace(-60, -15, labels, dtype=np.float32)
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))

    for function in (sigmoid, lambda values: label_scores(values, "sigmoid")):
        scores = function(logits)
        assert scores.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    best = best_labels(logits, "sigmoid", 2)
    assert [place for place, _ in best] == [labels - 1, labels - 2]


def test_exact_scores_keep_every_float32_apart() -> None:
    score = np.float32(0.7142857)
    next_one = np.nextafter(score, np.float32(1))

    assert exact(score) < exact(next_one)
    assert np.float32(exact(score)) == score


def test_no_function_leaves_logits() -> None:
    logits = np.array([3.0, -2.0], dtype=np.float32)

    assert apply_function(logits, "none") is logits


def test_equal_scores_keep_their_order() -> None:
    best = best_first(np.array([0.2, 0.4, 0.2, 0.4], dtype=np.float32))

    assert [place for place, _ in best] == [1, 3, 0, 2]


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("labels", [1, 2, 3, 32, 33, 200])
def test_the_best_labels_are_those_of_the_scores_in_every_digit(
    function: Function, labels: int
) -> None:
    generator = np.random.default_rng(labels)
    for _ in range(50):
        logits = generator.normal(scale=4, size=labels).astype(np.float32)

        assert best_labels(logits, function, 5) == best_first(label_scores(logits, function), 5)


def test_more_than_there_is_is_all() -> None:
    best = best_first(np.array([0.25, 0.75], dtype=np.float32), 10)

    assert best == [(1, 0.75), (0, 0.25)]


def test_scores_have_six_decimals_and_no_noise() -> None:
    assert rounded(np.array([1 / 3, 0.98], dtype=np.float32)) == [0.333333, 0.98]


def test_a_zero_vector_has_no_direction() -> None:
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)

    assert normalize(vectors).tolist() == [pytest.approx([0.6, 0.8]), [0.0, 0.0]]


def test_vectors_stay_single_precision() -> None:
    values = np.ones((2, 3), dtype=np.float32)

    assert {f(values).dtype for f in (softmax, sigmoid, normalize, gelu)} == {np.dtype("float32")}
