"""Builds the ONNX graph of a checkpoint: its encoder, and its head or a pooling."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace
from onnx import ModelProto

from sluicegate.backends.model_tools.graphs.adapters import CHOICES
from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.clip import describe_clip
from sluicegate.backends.model_tools.graphs.deberta import write_deberta
from sluicegate.backends.model_tools.graphs.decoders import describe_gemma3, describe_qwen3
from sluicegate.backends.model_tools.graphs.eurobert import describe_eurobert
from sluicegate.backends.model_tools.graphs.families import PREFIXES, as_bert, strip_prefix
from sluicegate.backends.model_tools.graphs.graph_builder import (
    GraphBuilder,
    StoredWeights,
    nothing_stored,
)
from sluicegate.backends.model_tools.graphs.heads import (
    add_end_pooling,
    add_head,
    add_pooling,
    find_head,
)
from sluicegate.backends.model_tools.graphs.modernbert import describe_modernbert
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Output
from sluicegate.backends.model_tools.graphs.rotary_bert import (
    describe_gte,
    describe_jina,
    describe_nomic,
)
from sluicegate.backends.model_tools.graphs.siglip import (
    KINDS as SIGLIP,
    describe_siglip,
    pool_filled_rows,
)
from sluicegate.backends.model_tools.graphs.stack import StackShape, write_stack
from sluicegate.backends.model_tools.graphs.t5 import describe_t5
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import Pooling

# Describes the layers of a family's checkpoint, and renames its weights.
_Describe = Callable[[Mapping[str, Any], Weights], tuple[StackShape, Weights]]
_STACKS: Mapping[str, _Describe] = MappingProxyType(
    {
        "modernbert": describe_modernbert,
        "eurobert": describe_eurobert,
        "new": describe_gte,
        "gte": describe_gte,
        "nomic_bert": describe_nomic,
        "jina_embeddings_v3": describe_jina,
        "t5": describe_t5,
        "clip_text_model": describe_clip,
        **dict.fromkeys(SIGLIP, describe_siglip),
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
        "eurobert": "model.",
        "new": "new.",
        "gte": "gte.",
        "nomic_bert": "nomic_bert.",
        "jina_embeddings_v3": "roberta.",
        "t5": "transformer.",
        "clip_text_model": "text_model.",
        **dict.fromkeys(SIGLIP, "text_model."),
        "qwen3": "model.",
        "gemma3_text": "model.",
    }
)
FAMILIES = tuple(_PREFIXES)
_CPU = GraphOptions(attention="gathered")
# The families and the kinds of attention of graphs that can choose among adapters. SigLIP fills
# rows with tokens that have no adapter.
_ADAPTED = {*PREFIXES, *_STACKS} - {*SIGLIP}
_ADAPTED_ATTENTION = ("gathered", "plain")


def weight_prefix(config: Mapping[str, Any]) -> str:
    """Return what begins the names of an encoder's weights in a checkpoint with a head."""
    return _PREFIXES.get(str(config.get("model_type")), "")


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
    if head is not None and CHOICES in weights:
        raise WeightsError("a model with a head cannot choose among adapters; import each apart")
    if head is None:
        encoder = build_encoder(config, weights, "tokens", options, stored)
        if config["model_type"] in SIGLIP:
            own = strip_prefix(weights, weight_prefix(config))
            return pool_filled_rows(encoder, config, own, stored)
        if config["model_type"] == "clip_text_model":
            return add_end_pooling(encoder, config, weights, hidden=_hidden(encoder), stored=stored)
        return add_pooling(encoder, pooling, hidden=_hidden(encoder), exact=attention == "gathered")
    own = strip_prefix(weights, weight_prefix(config))
    output: Output = "first" if head.reads == "first" else "tokens"
    encoder = build_encoder(config, weights, output, options, stored)
    plain, exact = attention == "plain", attention == "gathered"
    return add_head(encoder, head, own, plain=plain, exact=exact, stored=stored)


def build_encoder(
    config: Mapping[str, Any],
    weights: Weights,
    output: Output = "tokens",
    options: GraphOptions = _CPU,
    stored: StoredWeights = nothing_stored,
) -> ModelProto:
    """Return the graph of an encoder without a head or a pooling.

    Raises:
        WeightsError: no graph can be built for the checkpoint's family.
    """
    options = replace(options, output=output)
    kind, problem = str(config.get("model_type")), options.problem()
    has_graph = kind in _ADAPTED and options.attention in _ADAPTED_ATTENTION
    if CHOICES in weights and not has_graph:
        raise WeightsError(f"a `{kind}` cannot choose among adapters; import each apart")
    if kind in PREFIXES or kind not in _PREFIXES:
        size, renamed = as_bert(config, weights)
        return build_bert(size, renamed, options, stored)
    if options.attention == "fused" or options.precision == "bf16":
        problem = f"`{kind}` has no `{options.attention}` attention in {options.precision}"
    if problem is not None:
        raise WeightsError(problem)
    return _build_other(kind, config, strip_prefix(weights, _PREFIXES[kind]), options, stored)


def _build_other(
    kind: str,
    config: Mapping[str, Any],
    own: Weights,
    options: GraphOptions,
    stored: StoredWeights,
) -> ModelProto:
    """Return the graph of an encoder that is not like BERT; `own` weights have no prefix."""
    is_plain = options.attention == "plain"
    try:
        if kind in _STACKS:
            shape, renamed = _STACKS[kind](config, own)
            if CHOICES in own:
                shape, renamed = replace(shape, adapters=True), {**renamed, CHOICES: own[CHOICES]}
            graph = GraphBuilder(renamed, options.precision, plain=is_plain, stored=stored)
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
