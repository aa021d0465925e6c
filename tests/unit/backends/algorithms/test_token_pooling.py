"""Tests hierarchical pooling of token vectors."""

import numpy as np
import pytest

from sluicegate.backends.algorithms.token_pooling import pool_tokens
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.scores import normalize
from sluicegate.backends.types import FloatArray


def vectors(count: int, *, seed: int = 0) -> FloatArray:
    random = np.random.default_rng(seed)
    return normalize(random.standard_normal((count, 8)).astype(np.float32))


def test_near_vectors_become_their_mean() -> None:
    first, one, other = np.eye(3, dtype=np.float32)
    near = normalize(np.array([one + 0.01 * other], dtype=np.float32))[0]

    pooled = pool_tokens(np.stack([first, one, other, near, other]), 2)

    assert len(pooled) == 3
    np.testing.assert_array_equal(pooled[0], first)
    np.testing.assert_allclose(pooled[1], (one + near) / 2)
    np.testing.assert_allclose(pooled[2], other)


@pytest.mark.parametrize("factor", [2, 3, 50])
def test_a_factor_decides_the_number_of_vectors(factor: int) -> None:
    pooled = pool_tokens(vectors(41), factor)

    assert len(pooled) == 1 + max(1, 40 // factor)


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_clusters_are_merged(seed: int) -> None:
    count, factor = 9 + 5 * seed, 2 + seed % 4
    given = vectors(1 + count, seed=seed)

    pooled = pool_tokens(given, factor)

    merged = one_merge_at_a_time(given[1:], count // factor)
    expected = [given[1:][cluster].mean(axis=0) for cluster in sorted(merged)]
    np.testing.assert_allclose(pooled[1:], expected, atol=1e-6)


def one_merge_at_a_time(points: FloatArray, clusters: int) -> list[list[int]]:
    """Return the members of clusters: Ward's method as it is defined, on cosine distances."""
    items = [[number] for number in range(len(points))]
    squares = (1.0 - points @ points.T).astype(np.float64) ** 2
    while len(items) > clusters:
        np.fill_diagonal(squares, np.inf)
        one, other = sorted(np.unravel_index(squares.argmin(), squares.shape))
        sizes = np.array(list(map(len, items)))
        a, b = sizes[one], sizes[other]
        squares[one] = squares[:, one] = (
            (a + sizes) * squares[one] + (b + sizes) * squares[other] - sizes * squares[one, other]
        ) / (a + b + sizes)
        items[one] = sorted(items[one] + items.pop(other))
        squares = np.delete(np.delete(squares, other, axis=0), other, axis=1)
    return items


@pytest.mark.parametrize("seed", range(5))
def test_vectors_whose_nearest_neighbours_form_a_chain_are_merged(seed: int) -> None:
    angles = 0.002 * 1.05 ** np.arange(120 + seed)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    given = np.concatenate([points[:1], np.random.default_rng(seed).permutation(points)])

    pooled = pool_tokens(given, 3)

    merged = one_merge_at_a_time(given[1:], len(points) // 3)
    expected = [given[1:][cluster].mean(axis=0) for cluster in sorted(merged)]
    np.testing.assert_allclose(pooled[1:], expected, atol=1e-6)


def test_many_equal_vectors_become_one() -> None:
    given = np.broadcast_to(vectors(1), (2049, 8))

    pooled = pool_tokens(given, 2)

    np.testing.assert_allclose(pooled, given[:2], atol=1e-6)


def test_few_vectors_stay_as_they_are() -> None:
    given = vectors(2)

    assert pool_tokens(given, 4) is given


def test_too_many_vectors_are_refused() -> None:
    with pytest.raises(ItemRefused, match="pool_factor"):
        pool_tokens(np.zeros((3000, 2), dtype=np.float32), 2)
