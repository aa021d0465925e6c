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
    count = int(labels.max()) + 1
    sums = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, labels, pooled)
    means = sums / np.bincount(labels, minlength=count)[:, None].astype(np.float32)
    return np.concatenate([kept, means])


def _ward_clusters(distances: FloatArray, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each item, numbered by first items, so that at most `clusters` remain.

    A chain of nearest neighbours finds all merges in quadratic time (Murtagh, 1983).
    """
    count = len(distances)
    squares = distances.astype(np.float64) ** 2
    np.fill_diagonal(squares, np.inf)
    sizes = np.ones(count)
    merges: list[tuple[float, int, int]] = []
    chain: list[int] = []
    while len(merges) < count - 1:
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        here = chain[-1]
        near = int(squares[here].argmin())
        if len(chain) > 1 and squares[here, chain[-2]] <= squares[here, near]:
            near = chain[-2]
            del chain[-2:]
            merges.append((float(squares[here, near]), here, near))
            _merge(squares, sizes, here, near)
        else:
            chain.append(near)
    merges.sort(key=lambda merge: merge[0])
    # As `fcluster` does, merges of equal distance are either all done or all left out.
    limit = merges[count - 1 - clusters][0]
    parents = list(range(count))
    for square, one, other in merges:
        if square <= limit:
            parents[_root(parents, one)] = _root(parents, other)
    roots = np.array([_root(parents, item) for item in range(count)])
    _, first, numbers = np.unique(roots, return_index=True, return_inverse=True)
    return first.argsort().argsort()[numbers]


def _merge(squares: NDArray[np.float64], sizes: NDArray[np.float64], here: int, near: int) -> None:
    """Replace two clusters by their union, which keeps the number `near` (Lance and Williams)."""
    own, others = squares[here, near], sizes > 0
    total = sizes[here] + sizes[near] + sizes
    updated = (
        (sizes[here] + sizes) * squares[here] + (sizes[near] + sizes) * squares[near] - sizes * own
    ) / total
    sizes[near] += sizes[here]
    sizes[here] = 0.0
    others[[here, near]] = False
    squares[near, others] = squares[others, near] = updated[others]
    squares[here, :] = squares[:, here] = np.inf


def _root(parents: list[int], item: int) -> int:
    while parents[item] != item:
        parents[item] = parents[parents[item]]
        item = parents[item]
    return item
