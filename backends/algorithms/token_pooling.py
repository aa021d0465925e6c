"""Merges similar token vectors of a document, so that an index stores fewer of them.

This is hierarchical pooling as in sentence-transformers and PyLate: Ward's method on the cosine
distances (Clavié et al., "Reducing the Footprint of Multi-Vector Retrieval", arXiv 2409.14683).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.types import FloatArray

# Ward's method needs the distances of all pairs, eight bytes each.
_MOST_VECTORS = 2048
# The first vector, which is that of the token before the text, is kept.
_PROTECTED = 1
# A round must merge one of so many clusters at least. Ties can leave one merge to each round.
_FEWEST_MERGES = 32


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

    Each round merges all pairs of clusters that are nearest to each other. Without ties, this finds
    the same merges as one merge at a time (Murtagh, 1983), usually in few rounds. A merged cluster
    stands in the place of its first item.
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
        if len(one) * _FEWEST_MERGES < len(places):
            for height, kept, merged in _chain_merges(squares, sizes):
                parents[firsts[merged]], heights[firsts[merged]] = firsts[kept], height
            break
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


def _chain_merges(
    squares: NDArray[np.float64], sizes: NDArray[np.float64]
) -> Iterator[tuple[float, int, int]]:
    """Yield the distance and the places of each merge, until one cluster remains.

    A chain of nearest neighbours finds all merges in quadratic time, also with ties.
    """
    chain: list[int] = []
    remaining = set(range(len(squares)))
    while len(remaining) > 1:
        if not chain:
            chain.append(min(remaining))
        here = chain[-1]
        near = int(squares[here].argmin())
        if len(chain) == 1 or squares[here, near] < squares[here, chain[-2]]:
            chain.append(near)
            continue
        one, other = sorted(chain[-2:])
        del chain[-2:]
        yield float(squares[one, other]), one, other
        _merge(squares, sizes, np.array([one]), np.array([other]))
        squares[other] = squares[:, other] = np.inf
        remaining.remove(other)


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
