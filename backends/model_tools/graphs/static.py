"""Builds the graph of a static model, which looks token vectors up in a table and averages them."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from sluicegate.backends.model_tools.graphs.bert import TOKENS
from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.heads import add_pooling

_IDS, _MASK, _KNOWN = "input_ids", "attention_mask", "static.known"


class StaticTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the vectors of a static model.

    The vector of a token is `vectors[mapping[id]] * weights[id]`, as in `model2vec` (MIT). Without
    a `mapping` or `weights`, it is `vectors[id]`. The mean leaves the token `unknown` out.
    """

    vectors: NDArray[Any]
    mapping: NDArray[Any] | None = None
    weights: NDArray[Any] | None = None
    unknown: int | None = None


def build_static(table: StaticTable) -> ModelProto:
    """Return a graph with the outputs `pooled`, the mean of a row's vectors, and `tokens`.

    The mean of a row without known tokens is zero. The vectors keep their number format.
    """
    graph, hidden = GraphBuilder({}), table.vectors.shape[1]
    places, mask = _IDS, _MASK
    if table.mapping is not None:
        mapping = graph.constant("static.mapping", np.asarray(table.mapping, dtype=np.int32))
        places = graph.plain("Gather", [mapping, _IDS], "static.places")
    vectors = graph.constant("static.vectors", table.vectors)
    # The last node has the output's name, because OpenVINO does not keep names of `Identity`.
    is_cast, is_weighted = table.vectors.dtype != np.float32, table.weights is not None
    found = "static.found" if is_cast or is_weighted else TOKENS
    graph.plain("Gather", [vectors, places], found)
    if is_cast:
        floats = "static.floats" if is_weighted else TOKENS
        found = graph.plain("Cast", [found], floats, to=TensorProto.FLOAT)
    if table.weights is not None:
        column = np.asarray(table.weights, dtype=np.float32).reshape(-1, 1)
        weights = graph.constant("static.weights", column)
        graph.plain("Gather", [weights, _IDS], "static.weight")
        graph.plain("Mul", [found, "static.weight"], TOKENS)
    if table.unknown is not None:
        unknown = graph.constant("static.unknown", np.array(table.unknown, dtype=np.int32))
        graph.plain("Equal", [_IDS, unknown], "static.is_unknown")
        zero = graph.constant("static.zero", np.array(0, dtype=np.int32))
        mask = graph.plain("Where", ["static.is_unknown", zero, _MASK], _KNOWN)
    encoder = graph.model("static", [_IDS, _MASK], "tokens", hidden)
    return add_pooling(encoder, "mean", hidden=hidden, exact=True, mask=mask)
