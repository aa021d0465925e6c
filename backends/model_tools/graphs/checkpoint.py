"""Builds the ONNX graph of a checkpoint: its encoder, and its head or a pooling."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from onnx import ModelProto

from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.deberta import write_deberta
from sluicegate.backends.model_tools.graphs.families import PREFIXES, as_bert, strip_prefix
from sluicegate.backends.model_tools.graphs.graph_builder import (
    NOTHING_STORED,
    GraphBuilder,
    StoredWeights,
)
from sluicegate.backends.model_tools.graphs.heads import add_head, add_pooling, find_head
from sluicegate.backends.model_tools.graphs.modernbert import write_modernbert
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Output
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import Pooling

# Appends an encoder to a graph, and returns its inputs and the width of its output.
_Write = Callable[[GraphBuilder, Mapping[str, Any], GraphOptions], tuple[list[str], int]]
# For each family that `build_bert` does not compute, the prefix of its weights' names.
_OTHERS: Mapping[str, tuple[str, _Write]] = MappingProxyType(
    {"deberta-v2": ("deberta.", write_deberta), "modernbert": ("model.", write_modernbert)}
)
FAMILIES = (*PREFIXES, *_OTHERS)
_CPU = GraphOptions(attention="gathered")


def build_checkpoint(
    config: Mapping[str, Any],
    weights: Weights,
    *,
    pooling: Pooling = "mean",
    options: GraphOptions = _CPU,
    stored: StoredWeights = NOTHING_STORED,
) -> ModelProto:
    """Return the graph of a checkpoint; the default options suit CPUs.

    If the checkpoint has a head, the graph has the output `logits`. Otherwise, it has the outputs
    `pooled`, which `pooling` computes, and `tokens`. `options.output` is ignored. `stored`
    describes weights that are already in another file. The graph refers to that file instead of
    copying these weights.

    Raises:
        WeightsError: no graph can be built for the checkpoint's family or head.
    """
    head, attention = find_head(config), options.attention
    if head is None:
        encoder = build_encoder(config, weights, "tokens", options, stored)
        return add_pooling(encoder, pooling, hidden=_hidden(encoder), exact=attention == "gathered")
    own = strip_prefix(weights, PREFIXES.get(config["model_type"], ""))
    output: Output = "tokens" if head.reads == "pooled" else head.reads
    encoder = build_encoder(config, weights, output, options, stored)
    plain, exact = attention == "plain", attention == "gathered"
    return add_head(encoder, head, own, plain=plain, exact=exact, stored=stored)


def build_encoder(
    config: Mapping[str, Any],
    weights: Weights,
    output: Output = "tokens",
    options: GraphOptions = _CPU,
    stored: StoredWeights = NOTHING_STORED,
) -> ModelProto:
    """Return the graph of an encoder without a head or a pooling.

    Raises:
        WeightsError: no graph can be built for the checkpoint's family.
    """
    options = msgspec.structs.replace(options, output=output)
    kind = str(config.get("model_type"))
    if kind not in _OTHERS:
        shape, renamed = as_bert(config, weights)
        return build_bert(shape, renamed, options, stored)
    problem = options.problem()
    if options.attention == "fused" or options.precision == "bf16":
        problem = f"`{kind}` has no `{options.attention}` attention in {options.precision}"
    if problem is not None:
        raise WeightsError(problem)
    prefix, write = _OTHERS[kind]
    is_plain = options.attention == "plain"
    own = strip_prefix(weights, prefix)
    graph = GraphBuilder(own, options.precision, plain=is_plain, stored=stored)
    try:
        inputs, hidden = write(graph, config, options)
    except KeyError as error:
        raise WeightsError(f"the weight {error} is missing") from None
    except msgspec.ValidationError as error:
        raise WeightsError(f"`config.json`: {error}") from None
    return graph.model(kind.partition("-")[0], inputs, options.output, hidden)


def _hidden(encoder: ModelProto) -> int:
    size: int = encoder.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    return size
