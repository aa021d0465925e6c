"""Describes the text encoders of SigLIP (arXiv:2303.15343) and SigLIP 2 (arXiv:2502.14786).

Every row is filled with padding up to the most positions, and tokens attend to the padding, as in
training. The vector of a text is the state of the last position, which is often padding, after a
linear layer. The weights have the names of `transformers` (Apache-2.0), `models/siglip`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from onnx import ModelProto, TensorProto

from sluicegate.backends.model_tools.graphs.bert import TOKENS
from sluicegate.backends.model_tools.graphs.clip import describe_clip
from sluicegate.backends.model_tools.graphs.graph_builder import (
    GraphBuilder,
    StoredWeights,
    nothing_stored,
)
from sluicegate.backends.model_tools.graphs.heads import POOLED, extend_model
from sluicegate.backends.model_tools.graphs.stack import StackShape
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

KINDS = ("siglip_text_model", "siglip2_text_model")
FILLER = "filler_token_id"
"""The field of a configuration with the token that fills rows: the tokenizer's padding."""
_GIVEN = {"input_ids": "fill.ids", "attention_mask": "fill.mask"}


def describe_siglip(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of SigLIP's text encoder, and its weights with the names of `stack`.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
    """
    shape, renamed = describe_clip(config, weights)
    return msgspec.structs.replace(shape, causal=False), renamed


def pool_filled_rows(
    model: ModelProto,
    config: Mapping[str, Any],
    weights: Weights,
    stored: StoredWeights = nothing_stored,
) -> ModelProto:
    """Return `model` with filled rows, and with the output `pooled` in place of its output.

    Raises:
        WeightsError: the weights of the last linear layer are missing.
    """
    positions, filler = int(config["max_position_embeddings"]), config.get(FILLER)
    if not isinstance(filler, int):
        raise WeightsError("the tokenizer has no `pad_token`, which fills rows")
    missing = {"head.weight", "head.bias"} - set(weights)
    if missing:
        raise WeightsError(f"the weight `{min(missing)}` is missing")
    graph = GraphBuilder(weights, stored=stored)
    last = graph.constant("fill.last", np.array(positions - 1, dtype=np.int64))
    graph.plain("Gather", [TOKENS, last], "fill.state", axis=1)
    kernel = graph.weight("head.weight", transposed=True)
    graph.plain("MatMul", ["fill.state", kernel], "fill.product")
    graph.plain("Add", ["fill.product", graph.weight("head.bias")], POOLED)
    width = len(weights["head.weight"])
    pooled = extend_model(model, graph, POOLED, ["batch", width])
    return _fill(pooled, positions=positions, filler=filler)


def _fill(model: ModelProto, *, positions: int, filler: int) -> ModelProto:
    """Put nodes before all others of `model` that fill its rows; no node reads a shape."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = _GIVEN.get(name, name)
    graph = GraphBuilder({})
    zero = graph.constant("fill.zero", np.array([0], dtype=np.int32))
    token = graph.constant("fill.token", np.array([filler], dtype=np.int32))
    ones = graph.constant("fill.ones", np.ones((1, positions), dtype=np.int32))
    begin, one, end = (
        graph.constant(f"fill.{name}", np.array([value], dtype=np.int64))
        for name, value in (("begin", 0), ("one", 1), ("end", positions))
    )
    graph.plain("Cast", ["attention_mask"], "fill.real", to=TensorProto.BOOL)
    graph.plain("Where", ["fill.real", "input_ids", token], "fill.given")
    graph.plain("Slice", ["fill.given", begin, one, one], "fill.column")
    graph.plain("Mul", ["fill.column", zero], "fill.zeros")
    graph.plain("Add", ["fill.zeros", ones], _GIVEN["attention_mask"])
    graph.plain("Mul", [_GIVEN["attention_mask"], token], "fill.tokens")
    graph.plain("Concat", ["fill.given", "fill.tokens"], "fill.long", axis=1)
    graph.plain("Slice", ["fill.long", begin, end, one], _GIVEN["input_ids"])
    nodes = [*graph.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(graph.initializers)
    return model
