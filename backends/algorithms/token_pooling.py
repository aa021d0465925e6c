"""Merges similar token vectors of a document, so that an index stores fewer of them.

This is hierarchical pooling as in sentence-transformers and PyLate: Ward's method on the cosine
distances (Clavié et al., "Reducing the Footprint of Multi-Vector Retrieval", arXiv 2409.14683).
"""

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.types import FloatArray

# Ward's method needs the distances of all pairs, eight bytes each.
_MOST_VECTORS = 2048
# The first vector, which is that of the token before the text, is kept.
_PROTECTED = 1


def pool_tokens(vectors: FloatArray, factor: int) -> FloatArray:
    """Return about `1 / factor` of the vectors, of length one: the means of similar vectors.

    `vectors` have length one. The first one is kept as it is. The order of the others follows their
    clusters' first vectors.

    Raises:
        ItemRefused: there are too many vectors.
    """
    kept, pooled = vectors[:_PROTECTED], vectors[_PROTECTED:]
    clusters = max(1, len(pooled) // factor)
    if clusters >= len(pooled):
        return vectors
    if len(pooled) > _MOST_VECTORS:
        raise ItemRefused(
            "input_too_long",
            f"the text has {len(pooled)} vectors; `pool_factor` accepts at most {_MOST_VECTORS}; "
            "shorten it",
        )
    labels = _ward_clusters(np.clip(1.0 - pooled @ pooled.T, 0.0, 2.0), clusters)
    order = labels.argsort(kind="stable")
    sizes = np.bincount(labels)
    sums = np.add.reduceat(pooled[order], sizes.cumsum() - sizes)
    return np.concatenate([kept, sums / sizes[:, None].astype(np.float32)])


def _ward_clusters(distances: FloatArray, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each item, numbered by first items, so that at most `clusters` remain.

    Each round merges all pairs of clusters that are nearest to each other. With Ward's distance,
    this finds the same merges as one merge at a time (Murtagh, 1983), in few rounds. A merged
    cluster stands in the place of its first item.
    """
    squares = distances.astype(np.float64) ** 2
    np.fill_diagonal(squares, np.inf)
    count, needed = len(squares), len(squares) - clusters
    firsts, sizes = np.arange(count), np.ones(count)
    parents, heights = np.arange(count), np.full(count, np.inf)
    while True:
        nearest = squares.argmin(axis=1)
        places = np.arange(len(nearest))
        least = squares[places, nearest]
        # No later merge is lower than the lowest one now.
        if np.count_nonzero(heights < least.min()) >= needed:
            break
        one = ((nearest[nearest] == places) & (places < nearest)).nonzero()[0]
        other = nearest[one]
        gone = firsts[other]
        parents[gone], heights[gone] = firsts[one], least[one]
        _merge(squares, sizes, one, other)
        stays = np.ones(len(places), dtype=bool)
        stays[other] = False
        firsts, sizes = firsts[stays], sizes[stays]
        squares = squares[stays][:, stays]
    # As `fcluster` does, merges of equal distance are either all done or all left out.
    limit = np.sort(heights)[needed - 1]
    roots = np.where(heights <= limit, parents, np.arange(count))
    while ((above := roots[roots]) != roots).any():
        roots = above
    numbers: NDArray[np.int64] = (roots == np.arange(count)).cumsum() - 1
    return numbers[roots]


def _merge(
    squares: NDArray[np.float64],
    sizes: NDArray[np.float64],
    one: NDArray[np.int64],
    other: NDArray[np.int64],
) -> None:
    """Put the union of each pair of clusters in the place `one` (Lance and Williams)."""
    own, first, second = squares[one, other][:, None], sizes[one, None], sizes[other, None]
    before = sizes.copy()
    sizes[one] += sizes[other]

    def joined(
        left: NDArray[np.float64], right: NDArray[np.float64], others: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        weighted = (first + others) * left + (second + others) * right - others * own
        return weighted / (first + second + others)

    rows = joined(squares[one], squares[other], before)
    # The distance between two unions needs both merges.
    both = joined(rows[:, one].T, rows[:, other].T, sizes[one])
    squares[one], squares[:, one] = rows, rows.T
    squares[one[:, None], one] = np.minimum(both, both.T)
    squares[one, one] = np.inf
