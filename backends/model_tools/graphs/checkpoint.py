"""Builds one ONNX graph, encoder and head or pooling, of a checkpoint of the BERT family."""

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from backends.model_tools.graphs.bert import build_bert
from backends.model_tools.graphs.deberta import build_deberta
from backends.model_tools.graphs.families import PREFIXES, as_bert, strip_prefix
from backends.model_tools.graphs.form import GraphForm
from backends.model_tools.graphs.heads import add_head, add_pooling, find_head
from backends.model_tools.graphs.weights import Weights
from backends.types import Pooling

DEBERTA = "deberta-v2"
FAMILIES = (*PREFIXES, DEBERTA)


def build_checkpoint(
    config: Mapping[str, Any], weights: Weights, *, pooling: Pooling = "mean"
) -> ModelProto:
    """Return the graph of a checkpoint.

    With a head of its own the output is `logits`; a bare encoder has `pooled`, as `pooling`
    says, and `tokens`.

    Raises:
        WeightsError: it is of a family, or has a head, that no graph computes.
    """
    head = find_head(config)
    if head is None:
        encoder = _encoder(config, weights)
        return add_pooling(encoder, pooling, hidden=_hidden(encoder))
    own = strip_prefix(weights, PREFIXES.get(config["model_type"], ""))
    return add_head(_encoder(config, weights), head, own)


def _encoder(config: Mapping[str, Any], weights: Weights) -> ModelProto:
    if config.get("model_type") == DEBERTA:
        return build_deberta(config, weights)
    shape, renamed = as_bert(config, weights)
    return build_bert(shape, renamed, GraphForm(outputs=("tokens",)))


def _hidden(encoder: ModelProto) -> int:
    size: int = encoder.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    return size
