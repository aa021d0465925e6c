"""Adds the head of a checkpoint, or a pooling, to an encoder's graph.

A head reads the vector of each row's first or last token, or the vector of each token. It may have
a dense layer with an activation. Its last layer has one logit for each label. A decoder that ranks
by a word has one logit: the word's logit, less the logit of the opposite word.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np
from onnx import ModelProto, TensorProto, helper

from sluicegate.backends.model_tools.graphs.bert import TOKENS
from sluicegate.backends.model_tools.graphs.graph_builder import (
    GraphBuilder,
    StoredWeights,
    copy_model,
    nothing_stored,
)
from sluicegate.backends.model_tools.graphs.grids import pad_for_sum
from sluicegate.backends.model_tools.graphs.options import Output
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError, require
from sluicegate.backends.types import Pooling

_LARGEST = 2
LOGITS, POOLED = "logits", "pooled"
MASK = "attention_mask"
# The field of a configuration with the tokens by which a decoder ranks, and the end of its class.
WORDS = "ranking_token_ids"
_WORDS = "ForCausalLM"
_DECODERS = ("qwen3", "gemma3_text")
Purpose = Literal["text", "tokens", "choice", "answer"]

_ARCHITECTURES: Mapping[str, Purpose] = {
    "ForSequenceClassification": "text",
    "ForTokenClassification": "tokens",
    "ForMultipleChoice": "choice",
    "ForQuestionAnswering": "answer",
}


class HeadShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the weights of a head: an optional `dense` layer with `activation`, then `out`.

    `reads` is the encoder's output that the head reads, or `last` for the last token, not counting
    tokens whose id is `padding`. `norm` is a normalization after `dense`. If the head `pools`,
    `out` reads the mean of what `dense` computes of each token. If there are `words`, `out` is the
    matrix of all words' logits. Then the output is the logit of the first of `words`, less the
    logit of the second one.
    """

    out: str
    dense: str | None = None
    activation: Literal["Tanh", "Relu", "Gelu"] = "Tanh"
    reads: Output | Literal["pooled", "last"] = "first"
    norm: str | None = None
    epsilon: float = 1e-5
    pools: bool = False
    biased: bool = True
    out_biased: bool = True
    padding: int | None = None
    words: tuple[int, ...] = ()


def find_head(config: Mapping[str, Any]) -> HeadShape | None:
    """Return the head that `config.json` declares; `None` for a checkpoint without a head.

    Raises:
        WeightsError: the head is not supported.
    """
    name = str((config.get("architectures") or [""])[0])
    purpose = next((p for end, p in _ARCHITECTURES.items() if name.endswith(end)), None)
    if purpose is not None:
        return _head(config, purpose)
    if name.endswith(_WORDS) and WORDS in config:
        return _words(config)
    bare = ("Model", "ForMaskedLM", "ForPreTraining", _WORDS, _PROJECTED)
    if name and not name.endswith(bare):
        raise WeightsError(f"`architectures` is `{name}`, whose head is not supported")
    return None


# The end of the name of CLIP's encoder with the projection of its vectors.
_PROJECTED = "TextModelWithProjection"
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
        "jina_embeddings_v3": _DENSE,
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
_REQUIRED: Mapping[HeadShape, Mapping[str, Sequence[object]]] = MappingProxyType(
    {
        _SUMMARY: {
            "summary_type": ["first"],
            "summary_use_proj": [True],
            "summary_activation": ["gelu"],
        },
        _TEXTS["deberta-v2"]: {"pooler_hidden_act": ["gelu"]},
    }
)


def _head(config: Mapping[str, Any], purpose: Purpose) -> HeadShape:
    kind = str(config.get("model_type"))
    if kind == "modernbert":
        return _modernbert(config, purpose)
    if kind == "eurobert" and purpose == "text":
        return _eurobert(config)
    if kind in _DECODERS:
        return _decoder(config, purpose)
    if purpose == "tokens":
        return _TOKENS
    if kind == "t5":
        raise WeightsError("the head of a T5 reads its decoder, which is not supported")
    if purpose == "answer":
        return _ANSWERS
    head = _TEXTS.get(kind, _POOLED)
    if purpose == "choice":
        head = _CHOICES.get(kind, head)
    require(config, _REQUIRED.get(head, {}))
    return head


def _modernbert(config: Mapping[str, Any], purpose: Purpose) -> HeadShape:
    require(config, {"classifier_activation": ["gelu"]})
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


def _eurobert(config: Mapping[str, Any]) -> HeadShape:
    require(config, {"classifier_pooling": ["late", "mean", "bos"]})
    head = HeadShape(dense="dense", activation="Gelu", out="classifier")
    pooling = config.get("classifier_pooling", "late")
    # The name of the same field in the published code, which `transformers` does not read.
    require(config, {"clf_pooling": [pooling]})
    if pooling == "late":
        # The mean of the logits is the logits of the mean.
        return msgspec.structs.replace(head, reads="tokens", pools=True)
    return msgspec.structs.replace(head, reads="first" if pooling == "bos" else "pooled")


def _decoder(config: Mapping[str, Any], purpose: Purpose) -> HeadShape:
    if purpose in ("choice", "answer"):
        raise WeightsError("the head of a decoder for choices or questions is not supported")
    if purpose == "tokens":
        biased = bool(config.get("token_classification_bias", True))
        return HeadShape(out="score", reads="tokens", out_biased=biased)
    padding = config.get("pad_token_id")
    return HeadShape(out="score", reads="last", out_biased=False, padding=padding)


def _words(config: Mapping[str, Any]) -> HeadShape:
    require(config, {"final_logit_softcapping": [None]})
    out = "embed_tokens" if config.get("tie_word_embeddings") else "lm_head"
    return HeadShape(out=out, reads="last", out_biased=False, words=tuple(config[WORDS]))


def add_head(
    model: ModelProto,
    head: HeadShape,
    weights: Weights,
    *,
    plain: bool = False,
    exact: bool = False,
    stored: StoredWeights = nothing_stored,
) -> ModelProto:
    """Return `model` with a head, whose output `logits` replaces the outputs of `model`.

    For `exact`, see `add_pooling`.

    Raises:
        WeightsError: a weight of the head is missing or does not fit.
    """
    graph = GraphBuilder(weights, plain=plain, stored=stored)
    state: str = head.reads
    if state == POOLED:
        _pool_mean(graph, TOKENS, exact=exact)
    if state == "last":
        _take_last(graph, head.padding)
    if head.dense is not None:
        dense = _linear(graph, head.dense, state, "head.dense", biased=head.biased)
        state = _activate(graph, head.activation, dense)
    if head.norm is not None:
        parts = [f"{head.norm}.{part}" for part in ("weight", "bias")]
        inputs = [state, *(graph.weight(name) for name in parts if name in weights)]
        state = graph.plain("LayerNormalization", inputs, "head.normed", epsilon=head.epsilon)
    if head.pools:
        state = _pool_mean(graph, state, exact=exact)
    if head.words:
        labels = _write_words(graph, head, state)
    else:
        _linear(graph, head.out, state, LOGITS, biased=head.out_biased)
        labels = weights[f"{head.out}.weight"].shape[0]
    rows = ["batch", "sequence"] if head.reads == TOKENS and not head.pools else ["batch"]
    return extend_model(model, graph, LOGITS, [*rows, labels])


def add_pooling(
    model: ModelProto, pooling: Pooling, *, hidden: int, exact: bool = False, mask: str = MASK
) -> ModelProto:
    """Return `model` with the outputs `pooled`, `[batch, hidden]`, and `tokens`.

    On a CPU, the bits of an `exact` mean do not depend on the width of the batch. A mean is over
    the tokens in `mask`.
    """
    graph = GraphBuilder({}, "fp32")
    _pool(graph, pooling, exact=exact, mask=mask)
    return extend_model(model, graph, POOLED, ["batch", hidden], keep=[TOKENS])


def add_end_pooling(
    model: ModelProto,
    config: Mapping[str, Any],
    weights: Weights,
    *,
    hidden: int,
    stored: StoredWeights = nothing_stored,
) -> ModelProto:
    """Return `model` with the output `pooled`: the state of each row's end token, as in CLIP.

    A projection is applied if the checkpoint has one. Without it, the output `tokens` remains.

    Raises:
        WeightsError: the checkpoint needs a projection, but does not have it.
    """
    graph, end = GraphBuilder(weights, stored=stored), config.get("eos_token_id")
    ids = "input_ids"
    if not isinstance(end, int):
        raise WeightsError("`eos_token_id` must be the id of the token that ends a text")
    # In older configurations, 2 stands for the largest id.
    if end != _LARGEST:
        token = graph.constant("end.token", np.array(end, dtype=np.int32))
        graph.plain("Equal", [ids, token], "end.found")
        graph.plain("Cast", ["end.found"], "end.marked", to=TensorProto.INT32)
        ids = graph.plain("Mul", ["end.marked", "attention_mask"], "end.real")
    axis = graph.constant("end.axis", np.array([1], dtype=np.int64))
    graph.plain("ArgMax", [ids], "end.place", axis=1, keepdims=0)
    graph.plain("Unsqueeze", ["end.place", axis], "end.places")
    is_projected = str((config.get("architectures") or [""])[0]).endswith(_PROJECTED)
    state = "end.state" if is_projected else POOLED
    graph.plain("GatherND", [TOKENS, "end.places"], state, batch_dims=1)
    if not is_projected:
        return extend_model(model, graph, POOLED, ["batch", hidden], keep=[TOKENS])
    _linear(graph, "text_projection", state, POOLED, biased=False)
    return extend_model(model, graph, POOLED, ["batch", len(weights["text_projection.weight"])])


def _pool(graph: GraphBuilder, pooling: Pooling, *, exact: bool, mask: str = MASK) -> None:
    if pooling == "cls":
        first = graph.constant("pool.first", np.array(0, dtype=np.int64))
        graph.plain("Gather", [TOKENS, first], POOLED, axis=1)
    elif pooling == "mean":
        _pool_mean(graph, TOKENS, exact=exact, mask=mask)
    else:
        _pool_max(graph)


def _take_last(graph: GraphBuilder, padding: int | None) -> None:
    """Append the vector of each row's last token: `[batch, hidden]`."""
    axis = graph.constant("last.axis", np.array(1, dtype=np.int64))
    taken = MASK
    if padding is not None:
        number = graph.constant("last.padding", np.array(padding, dtype=np.int32))
        zero = graph.constant("last.zero", np.array(0, dtype=np.int32))
        graph.plain("Equal", ["input_ids", number], "last.is_padding")
        taken = graph.plain("Where", ["last.is_padding", zero, MASK], "last.taken")
    graph.plain("CumSum", [MASK, axis], "last.counted")
    graph.plain("Mul", ["last.counted", taken], "last.places")
    graph.plain("ArgMax", ["last.places"], "last.place", axis=1, keepdims=1)
    graph.plain("GatherND", [TOKENS, "last.place"], "last", batch_dims=1)


def _write_words(graph: GraphBuilder, head: HeadShape, state: str) -> int:
    """Append the logit of the first word, less the logit of the second; return the number 1."""
    name = f"{head.out}.weight"
    if name not in graph.weights:
        raise WeightsError(f"the weight `{name}` of the head is missing")
    matrix = graph.weights[name]
    if max(head.words) >= len(matrix):
        raise WeightsError(f"the token {max(head.words)} to rank by has no row in `{name}`")
    rows = matrix[list(head.words)]
    kernel = rows[0] - rows[1] if len(rows) > 1 else rows[0]
    graph.plain("MatMul", [state, graph.floats("head.words", kernel[:, None])], LOGITS)
    return 1


def _pool_max(graph: GraphBuilder) -> None:
    axis = graph.constant("pool.axis", np.array([-1], dtype=np.int64))
    rows = graph.constant("pool.rows", np.array([1], dtype=np.int64))
    least = graph.constant("pool.least", np.array(np.finfo(np.float32).min, dtype=np.float32))
    graph.plain("Cast", [MASK], "pool.mask", to=TensorProto.BOOL)
    graph.plain("Unsqueeze", ["pool.mask", axis], "pool.real")
    graph.plain("Where", ["pool.real", TOKENS, least], "pool.tokens")
    graph.plain("ReduceMax", ["pool.tokens", rows], POOLED, keepdims=0)


def _pool_mean(graph: GraphBuilder, tokens: str, *, exact: bool, mask: str = MASK) -> str:
    """Append `pooled`, the mean of what `tokens` holds for each token in `mask`."""
    # An exact mean does not use the axis, which only keeps the revision of earlier imports.
    axis = graph.constant("pool.axis", np.array([-1], dtype=np.int64))
    rows = graph.constant("pool.rows", np.array([1], dtype=np.int64))
    # The mean of an empty row must be zero, not NaN.
    least = graph.constant("pool.least", np.array(1, dtype=np.float32))
    if exact:
        places = pad_for_sum(graph, mask, "pool.places")
        pad_for_sum(graph, tokens, "pool.tokens", rank=3)
        graph.plain("Cast", [places], "pool.mask", to=TensorProto.FLOAT)
        graph.plain("Unsqueeze", ["pool.mask", rows], "pool.selector")
        graph.plain("MatMul", ["pool.selector", "pool.tokens"], "pool.sums")
        graph.plain("Squeeze", ["pool.sums", rows], "pool.sum")
    else:
        graph.plain("Cast", [mask], "pool.mask", to=TensorProto.FLOAT)
        graph.plain("Unsqueeze", ["pool.mask", axis], "pool.real")
        graph.plain("Mul", [tokens, "pool.real"], "pool.tokens")
        graph.plain("ReduceSum", ["pool.tokens", rows], "pool.sum", keepdims=0)
    graph.plain("ReduceSum", ["pool.mask", rows], "pool.found", keepdims=1)
    graph.plain("Max", ["pool.found", least], "pool.count")
    return graph.plain("Div", ["pool.sum", "pool.count"], POOLED)


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


def extend_model(
    model: ModelProto,
    graph: GraphBuilder,
    output: str,
    size: list[int | str],
    keep: list[str] | None = None,
) -> ModelProto:
    """Return `model` with the nodes of `graph`, and with `output`, which has the size `size`.

    Of the outputs of `model`, those in `keep` remain.
    """
    graph.check_adapters()
    extended = copy_model(model)
    changed = extended.graph
    changed.node.extend(graph.nodes)
    changed.initializer.extend(graph.initializers)
    kept = [value for value in changed.output if value.name in (keep or [])]
    del changed.output[:]
    changed.output.extend([helper.make_tensor_value_info(output, TensorProto.FLOAT, size), *kept])
    return extended
