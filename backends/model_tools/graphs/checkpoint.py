"""Builds the ONNX graph of a checkpoint: its encoder, and its head or a pooling."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from onnx import ModelProto

from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.deberta import write_deberta
from sluicegate.backends.model_tools.graphs.decoders import describe_gemma3, describe_qwen3
from sluicegate.backends.model_tools.graphs.families import PREFIXES, as_bert, strip_prefix
from sluicegate.backends.model_tools.graphs.graph_builder import (
    GraphBuilder,
    StoredWeights,
    nothing_stored,
)
from sluicegate.backends.model_tools.graphs.heads import add_head, add_pooling, find_head
from sluicegate.backends.model_tools.graphs.modernbert import describe_modernbert
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Output
from sluicegate.backends.model_tools.graphs.stack import StackShape, write_stack
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import Pooling

# Describes the layers of a family's checkpoint, and renames its weights.
_Describe = Callable[[Mapping[str, Any], Weights], tuple[StackShape, Weights]]
_STACKS: Mapping[str, _Describe] = MappingProxyType(
    {
        "modernbert": describe_modernbert,
        "qwen3": describe_qwen3,
        "gemma3_text": describe_gemma3,
    }
)
# The prefixes of the names of weights in checkpoints with a head.
_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        **PREFIXES,
        "deberta-v2": "deberta.",
        "modernbert": "model.",
        "qwen3": "model.",
        "gemma3_text": "model.",
    }
)
FAMILIES = tuple(_PREFIXES)
_CPU = GraphOptions(attention="gathered")


def build_checkpoint(
    config: Mapping[str, Any],
    weights: Weights,
    *,
    pooling: Pooling = "mean",
    options: GraphOptions = _CPU,
    stored: StoredWeights = nothing_stored,
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
        encoder = _encoder(config, weights, "tokens", options, stored)
        return add_pooling(encoder, pooling, hidden=_hidden(encoder), exact=attention == "gathered")
    own = strip_prefix(weights, _PREFIXES.get(config["model_type"], ""))
    output: Output = "first" if head.reads == "first" else "tokens"
    encoder = _encoder(config, weights, output, options, stored)
    plain, exact = attention == "plain", attention == "gathered"
    return add_head(encoder, head, own, plain=plain, exact=exact, stored=stored)


def _encoder(
    config: Mapping[str, Any],
    weights: Weights,
    output: Output,
    options: GraphOptions,
    stored: StoredWeights,
) -> ModelProto:
    options = msgspec.structs.replace(options, output=output)
    kind = str(config.get("model_type"))
    if kind in PREFIXES or kind not in _PREFIXES:
        size, renamed = as_bert(config, weights)
        return build_bert(size, renamed, options, stored)
    problem = options.problem()
    if options.attention == "fused" or options.precision == "bf16":
        problem = f"`{kind}` has no `{options.attention}` attention in {options.precision}"
    if problem is not None:
        raise WeightsError(problem)
    is_plain = options.attention == "plain"
    own = strip_prefix(weights, _PREFIXES[kind])
    try:
        if kind in _STACKS:
            shape, own = _STACKS[kind](config, own)
            graph = GraphBuilder(own, options.precision, plain=is_plain, stored=stored)
            write_stack(graph, shape, options)
            inputs, hidden = shape.inputs, shape.hidden
        else:
            graph = GraphBuilder(own, options.precision, plain=is_plain, stored=stored)
            inputs, hidden = write_deberta(graph, config, options)
    except KeyError as error:
        raise WeightsError(f"the weight {error} is missing") from None
    except msgspec.ValidationError as error:
        raise WeightsError(f"`config.json`: {error}") from None
    return graph.model(kind.partition("-")[0], inputs, options.output, hidden)


def _hidden(encoder: ModelProto) -> int:
    size: int = encoder.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    return size
