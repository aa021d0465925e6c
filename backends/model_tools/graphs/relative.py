"""Writes the bias that MPNet adds to attention scores for relative positions.

The bias of a pair of tokens depends on the bucket of their distance. Each short distance has a
bucket of its own; the buckets of longer distances grow logarithmically (Raffel et al. 2020,
arXiv:1910.10683). All layers share the bias.
"""

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.shapes import RELATIVE_BIAS, BertShape

# All distances longer than this one are in MPNet's last bucket.
_FARTHEST = 128


def add_distances(graph: GraphBuilder, *, positions: int) -> str:
    """Append nodes that compute the distance between any two tokens of a row.

    The output is int64 `[sequence, sequence]`. The value at `[i, j]` is `j - i + positions - 1`. It
    is not negative, so it can be the index into a table with an entry for each distance.
    """
    zero = graph.constant("distance.zero", np.array(0, dtype=np.int64))
    one = graph.constant("distance.one", np.array(1, dtype=np.int64))
    across = graph.constant("distance.across", np.array([1], dtype=np.int64))
    centre = graph.constant("distance.centre", np.array(positions - 1, dtype=np.int64))
    graph.plain("Shape", ["input_ids"], "distance.length", start=1, end=2)
    graph.plain("Squeeze", ["distance.length"], "distance.width")
    graph.plain("Range", [zero, "distance.width", one], "distance.places")
    graph.plain("Unsqueeze", ["distance.places", across], "distance.rows")
    graph.plain("Sub", ["distance.places", "distance.rows"], "distance.signed")
    return graph.plain("Add", ["distance.signed", centre], "distance")


def count_places(graph: GraphBuilder) -> str:
    """Append the index of each place in a row, padding included: int32 `[batch, sequence]`.

    The index is computed from the values of the inputs, not from their shapes. Shapes are computed
    on the CPU, and a graph that needs the CPU cannot become a CUDA graph.
    """
    zero = graph.constant("columns.zero", np.array(0, dtype=np.int32))
    one = graph.constant("columns.one", np.array(1, dtype=np.int32))
    axis = graph.constant("columns.axis", np.array(1, dtype=np.int64))
    graph.plain("Mul", ["attention_mask", zero], "columns.zeros")
    graph.plain("Add", ["columns.zeros", one], "columns.ones")
    return graph.plain("CumSum", ["columns.ones", axis], "columns", exclusive=1)


def subtract_places(graph: GraphBuilder, places: str, *, positions: int) -> str:
    """Append the same distances as `add_distances`, in int32.

    `places` is the output of `count_places`.
    """
    row = graph.constant("distance.row", np.array(0, dtype=np.int64))
    across = graph.constant("distance.across", np.array([1], dtype=np.int64))
    centre = graph.constant("distance.centre", np.array(positions - 1, dtype=np.int32))
    graph.plain("Gather", [places, row], "distance.places", axis=0)
    graph.plain("Unsqueeze", ["distance.places", across], "distance.rows")
    graph.plain("Sub", ["distance.places", "distance.rows"], "distance.signed")
    return graph.plain("Add", ["distance.signed", centre], "distance")


def add_relative_bias(graph: GraphBuilder, shape: BertShape, *, from_values: bool) -> str:
    """Append the bias of each head and pair of places: `[1, heads, sequence, sequence]`.

    With `from_values`, the bias is computed from the inputs' values, which suits GPUs. Otherwise,
    it is computed from the inputs' shapes, which suits compilers.
    """
    distances = np.arange(1 - shape.positions, shape.positions)
    buckets = bucket_distances(distances, buckets=shape.buckets)
    table = graph.floats("relative.table", graph.weights[RELATIVE_BIAS][buckets].T)
    if from_values:
        pairs = subtract_places(graph, count_places(graph), positions=shape.positions)
    else:
        pairs = add_distances(graph, positions=shape.positions)
    row = graph.constant("relative.row", np.array([0], dtype=np.int64))
    graph.plain("Gather", [table, pairs], "relative.heads", axis=1)
    return graph.plain("Unsqueeze", ["relative.heads", row], "relative")


def bucket_distances(
    distances: NDArray[np.int64], *, buckets: int, farthest: int = _FARTHEST
) -> NDArray[np.int64]:
    """Return the bucket of each distance; the upper half of the buckets is for later tokens.

    All distances from `farthest` on have the same bucket.
    """
    half = buckets // 2
    exact = half // 2
    size = np.abs(distances)
    # In float32, as in training, because rounding decides at the edge of a bucket.
    steps = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    steps = steps / np.float32(np.log(farthest / exact)) * np.float32(half - exact)
    far = np.minimum(exact + steps.astype(np.int64), half - 1)
    found: NDArray[np.int64] = np.where(size < exact, size, far) + half * (distances > 0)
    return found
