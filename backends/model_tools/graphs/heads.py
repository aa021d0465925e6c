"""Adds the head of a checkpoint, or a pooling, to an encoder's graph.

A head reads either the vector of each row's first token, or the vector of each token. It may have a
dense layer with an activation. Its last layer has one logit for each label.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np
from onnx import ModelProto, TensorProto, helper

from sluicegate.backends.model_tools.graphs.bert import TOKENS
from sluicegate.backends.model_tools.graphs.graph_builder import (
    NOTHING_STORED,
    GraphBuilder,
    StoredWeights,
    copy_model,
)
from sluicegate.backends.model_tools.graphs.grids import pad_for_sum
from sluicegate.backends.model_tools.graphs.options import Output
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import Pooling

LOGITS, POOLED = "logits", "pooled"
Purpose = Literal["text", "tokens", "choice", "answer"]

_ARCHITECTURES: Mapping[str, Purpose] = {
    "ForSequenceClassification": "text",
    "ForTokenClassification": "tokens",
    "ForMultipleChoice": "choice",
    "ForQuestionAnswering": "answer",
}


class HeadShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the weights of a head: an optional `dense` layer with `activation`, then `out`.

    `reads` is the encoder's output that the head reads. `norm` is a normalization after `dense`.
    """

    out: str
    dense: str | None = None
    activation: Literal["Tanh", "Relu", "Gelu"] = "Tanh"
    reads: Output | Literal["pooled"] = "first"
    norm: str | None = None
    epsilon: float = 1e-5
    biased: bool = True


def find_head(config: Mapping[str, Any]) -> HeadShape | None:
    """Return the head that `config.json` declares; `None` for a checkpoint without a head.

    Raises:
        WeightsError: the head is not supported.
    """
    name = str((config.get("architectures") or [""])[0])
    purpose = next((p for end, p in _ARCHITECTURES.items() if name.endswith(end)), None)
    if purpose is not None:
        return _head(config, purpose)
    if name and not name.endswith(("Model", "ForMaskedLM", "ForPreTraining")):
        raise WeightsError(f"`architectures` is `{name}`, whose head is not supported")
    return None


_TOKENS = HeadShape(out="classifier", reads="tokens")
_ANSWERS = HeadShape(out="qa_outputs", reads="tokens")
_POOLED = HeadShape(dense="pooler.dense", out="classifier")
_DENSE = HeadShape(dense="classifier.dense", out="classifier.out_proj")
# The heads of texts and, unless `_CHOICES` has another one, of choices, by model type.
_TEXTS: Mapping[str, HeadShape] = MappingProxyType(
    {
        "distilbert": HeadShape(dense="pre_classifier", activation="Relu", out="classifier"),
        "roberta": _DENSE,
        "xlm-roberta": _DENSE,
        "mpnet": _DENSE,
        "electra": msgspec.structs.replace(_DENSE, activation="Gelu"),
        "albert": HeadShape(dense="pooler", out="classifier"),
        "deberta-v2": msgspec.structs.replace(_POOLED, activation="Gelu"),
    }
)
_SUMMARY = HeadShape(dense="sequence_summary.summary", activation="Gelu", out="classifier")
_CHOICES: Mapping[str, HeadShape] = MappingProxyType(
    {"roberta": _POOLED, "xlm-roberta": _POOLED, "mpnet": _POOLED, "electra": _SUMMARY}
)
# Fields of `config.json` that must have these values, if the head reads them.
_REQUIRED: Mapping[HeadShape, Mapping[str, object]] = MappingProxyType(
    {
        _SUMMARY: {
            "summary_type": "first",
            "summary_use_proj": True,
            "summary_activation": "gelu",
        },
        _TEXTS["deberta-v2"]: {"pooler_hidden_act": "gelu"},
    }
)


def _head(config: Mapping[str, Any], purpose: Purpose) -> HeadShape:
    kind = str(config.get("model_type"))
    if kind == "modernbert":
        return _modernbert(config, purpose)
    if purpose == "tokens":
        return _TOKENS
    if purpose == "answer":
        return _ANSWERS
    head = _TEXTS.get(kind, _POOLED)
    if purpose == "choice":
        head = _CHOICES.get(kind, head)
    _require(config, _REQUIRED.get(head, {}))
    return head


def _modernbert(config: Mapping[str, Any], purpose: Purpose) -> HeadShape:
    _require(config, {"classifier_activation": "gelu"})
    pooled: Output | Literal["pooled"] = (
        "pooled" if config.get("classifier_pooling", "cls") == "mean" else "first"
    )
    return HeadShape(
        dense="head.dense",
        activation="Gelu",
        out="classifier",
        reads="tokens" if purpose in {"tokens", "answer"} else pooled,
        norm="head.norm",
        epsilon=config.get("norm_eps", 1e-5),
        biased=config.get("classifier_bias", False),
    )


def _require(config: Mapping[str, Any], values: Mapping[str, object]) -> None:
    for field, wanted in values.items():
        if config.get(field, wanted) != wanted:
            raise WeightsError(f"`{field}` must be `{wanted}`")


def add_head(
    model: ModelProto,
    head: HeadShape,
    weights: Weights,
    *,
    plain: bool = False,
    exact: bool = False,
    stored: StoredWeights = NOTHING_STORED,
) -> ModelProto:
    """Return `model` with a head, whose output `logits` replaces the outputs of `model`.

    For `exact`, see `add_pooling`.

    Raises:
        WeightsError: a weight of the head is missing or does not fit.
    """
    graph = GraphBuilder(weights, plain=plain, stored=stored)
    state: str = head.reads
    if state == POOLED:
        _pool(graph, "mean", exact=exact)
    if head.dense is not None:
        dense = _linear(graph, head.dense, state, "head.dense", biased=head.biased)
        state = _activate(graph, head.activation, dense)
    if head.norm is not None:
        parts = [f"{head.norm}.{part}" for part in ("weight", "bias")]
        inputs = [state, *(graph.weight(name) for name in parts if name in weights)]
        state = graph.plain("LayerNormalization", inputs, "head.normed", epsilon=head.epsilon)
    _linear(graph, head.out, state, LOGITS)
    labels = weights[f"{head.out}.bias"].shape[0]
    rows = ["batch", "sequence"] if head.reads == TOKENS else ["batch"]
    return _extended(model, graph, LOGITS, [*rows, labels])


def add_pooling(
    model: ModelProto, pooling: Pooling, *, hidden: int, exact: bool = False
) -> ModelProto:
    """Return `model` with the outputs `pooled`, `[batch, hidden]`, and `tokens`.

    On a CPU, the bits of an `exact` mean do not depend on the width of the batch.
    """
    graph = GraphBuilder({}, "fp32")
    _pool(graph, pooling, exact=exact)
    return _extended(model, graph, POOLED, ["batch", hidden], keep=[TOKENS])


def _pool(graph: GraphBuilder, pooling: Pooling, *, exact: bool) -> None:
    if pooling == "cls":
        first = graph.constant("pool.first", np.array(0, dtype=np.int64))
        graph.plain("Gather", [TOKENS, first], POOLED, axis=1)
    elif pooling == "mean":
        _pool_mean(graph, exact=exact)
    else:
        _pool_max(graph)


def _pool_max(graph: GraphBuilder) -> None:
    axis = graph.constant("pool.axis", np.array([-1], dtype=np.int64))
    rows = graph.constant("pool.rows", np.array([1], dtype=np.int64))
    least = graph.constant("pool.least", np.array(np.finfo(np.float32).min, dtype=np.float32))
    graph.plain("Cast", ["attention_mask"], "pool.mask", to=TensorProto.BOOL)
    graph.plain("Unsqueeze", ["pool.mask", axis], "pool.real")
    graph.plain("Where", ["pool.real", TOKENS, least], "pool.tokens")
    graph.plain("ReduceMax", ["pool.tokens", rows], POOLED, keepdims=0)


def _pool_mean(graph: GraphBuilder, *, exact: bool) -> None:
    # An exact mean does not use the axis, which only keeps the revision of earlier imports.
    axis = graph.constant("pool.axis", np.array([-1], dtype=np.int64))
    rows = graph.constant("pool.rows", np.array([1], dtype=np.int64))
    # The mean of an empty row must be zero, not NaN.
    least = graph.constant("pool.least", np.array(1, dtype=np.float32))
    if exact:
        mask = pad_for_sum(graph, "attention_mask", "pool.places")
        pad_for_sum(graph, TOKENS, "pool.tokens", rank=3)
        graph.plain("Cast", [mask], "pool.mask", to=TensorProto.FLOAT)
        graph.plain("Unsqueeze", ["pool.mask", rows], "pool.selector")
        graph.plain("MatMul", ["pool.selector", "pool.tokens"], "pool.sums")
        graph.plain("Squeeze", ["pool.sums", rows], "pool.sum")
    else:
        graph.plain("Cast", ["attention_mask"], "pool.mask", to=TensorProto.FLOAT)
        graph.plain("Unsqueeze", ["pool.mask", axis], "pool.real")
        graph.plain("Mul", [TOKENS, "pool.real"], "pool.tokens")
        graph.plain("ReduceSum", ["pool.tokens", rows], "pool.sum", keepdims=0)
    graph.plain("ReduceSum", ["pool.mask", rows], "pool.found", keepdims=1)
    graph.plain("Max", ["pool.found", least], "pool.count")
    graph.plain("Div", ["pool.sum", "pool.count"], POOLED)


def _linear(
    graph: GraphBuilder, prefix: str, state: str, output: str, *, biased: bool = True
) -> str:
    for part in ("weight", *(["bias"] if biased else [])):
        if f"{prefix}.{part}" not in graph.weights:
            raise WeightsError(f"the weight `{prefix}.{part}` of the head is missing")
    kernel = graph.weight(f"{prefix}.weight", transposed=True)
    if not biased:
        return graph.plain("MatMul", [state, kernel], output)
    graph.plain("MatMul", [state, kernel], f"{output}.product")
    return graph.plain("Add", [f"{output}.product", graph.weight(f"{prefix}.bias")], output)


def _activate(graph: GraphBuilder, activation: str, state: str) -> str:
    if activation == "Gelu":
        return graph.gelu("Gelu", [state], "head.active")
    return graph.plain(activation, [state], "head.active")


def _extended(
    model: ModelProto,
    graph: GraphBuilder,
    output: str,
    size: list[int | str],
    keep: list[str] | None = None,
) -> ModelProto:
    extended = copy_model(model)
    changed = extended.graph
    changed.node.extend(graph.nodes)
    changed.initializer.extend(graph.initializers)
    kept = [value for value in changed.output if value.name in (keep or [])]
    del changed.output[:]
    changed.output.extend([helper.make_tensor_value_info(output, TensorProto.FLOAT, size), *kept])
    return extended
