"""Appends sparse vectors and token vectors to the graph of an encoder.

- `add_splade` appends the head that predicts words, and the pooling of SPLADE.
- `add_projection` appends the layers of ColBERT after each token's vector.
- `add_joined` appends the heads of BGE-M3, and joins their results with the dense vector.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.model_tools.graphs.weights import Weights
from sluicegate.backends.model_tools.importing.sentence_graph import (
    POOLED,
    SentenceWriter,
    find_opset,
    prune,
    width_of,
)
from sluicegate.backends.repository.sentence_modules import DenseModule, SpladeModule

JOINED, VECTORS = "joined", "vectors"


class WordHead(msgspec.Struct, frozen=True, kw_only=True):
    """Names the weights of a head that predicts words, and the sizes that `config.json` names."""

    dense: str
    norm: str
    decoder: str
    bias: str
    activation: str = "hidden_act"
    epsilon: str = "layer_norm_eps"


_BERT = WordHead(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    bias="cls.predictions.bias",
)
_ROBERTA = WordHead(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    decoder="lm_head.decoder",
    bias="lm_head.bias",
    activation="gelu",
)
# The names of `transformers` (Apache-2.0), by model type.
_HEADS: Mapping[str, WordHead] = MappingProxyType(
    {
        "bert": _BERT,
        "distilbert": WordHead(
            dense="vocab_transform",
            norm="vocab_layer_norm",
            decoder="vocab_projector",
            bias="vocab_projector.bias",
            activation="activation",
            epsilon="1e-12",
        ),
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
        "mpnet": _ROBERTA,
        "electra": WordHead(
            dense="generator_predictions.dense",
            norm="generator_predictions.LayerNorm",
            decoder="generator_lm_head",
            bias="generator_lm_head.bias",
            activation="gelu",
            epsilon="1e-12",
        ),
        "albert": WordHead(
            dense="predictions.dense",
            norm="predictions.LayerNorm",
            decoder="predictions.decoder",
            bias="predictions.bias",
        ),
        "modernbert": WordHead(
            dense="head.dense",
            norm="head.norm",
            decoder="decoder",
            bias="decoder.bias",
            activation="classifier_activation",
            epsilon="norm_eps",
        ),
    }
)
# With tied weights, the head has the matrix of the embeddings.
_EMBEDDINGS = ("word_embeddings.weight", "tok_embeddings.weight")
_ACTIVATIONS: Mapping[str, Callable[[SentenceWriter, str], str]] = MappingProxyType(
    {
        "gelu": lambda writer, state: writer.gelu(state),
        "gelu_new": lambda writer, state: writer.tanh_gelu(state),
        "relu": lambda writer, state: writer.add("Relu", state),
        "silu": lambda writer, state: writer.add("Mul", state, writer.add("Sigmoid", state)),
    }
)


def add_splade(
    model: ModelProto,
    module: SpladeModule,
    weights: Weights,
    config: Mapping[str, Any],
    *,
    tokens: str,
) -> int:
    """Append a head that predicts words and its pooling; return the size of the vocabulary.

    `pooled` becomes the only output: the weight of each word, `log(1 + relu(logit))`.

    Raises:
        ModelProblem: the family has no such head, or a weight is missing.
    """
    kind = str(config.get("model_type"))
    head = _HEADS.get(kind)
    if head is None:
        raise ModelProblem(
            f"no head that predicts words can be built for a `{kind}`; export the model to ONNX "
            "for the task `fill-mask`, and import that"
        )
    activation = str(config.get(head.activation, head.activation))
    if activation not in _ACTIVATIONS:
        raise ModelProblem(f"the activation `{activation}` of the head is not supported")
    writer = _writer_after(model, tokens)
    matrix = _decoder(head, weights)
    bias = next((weights[n] for n in (head.bias, f"{head.decoder}.bias") if n in weights), None)
    # The largest logit of a row without padding is that of the row in which its first token's
    # vector stands in each place of padding. So no logit needs a mask.
    source = writer.unpadded(tokens) if module.strategy == "max" else tokens
    state = _ACTIVATIONS[activation](writer, writer.linear(source, weights, head.dense))
    epsilon = float(config.get(head.epsilon, 0) or _default_epsilon(head.epsilon))
    state = writer.normed(state, weights, head.norm, epsilon)
    logits = writer.add("MatMul", state, writer.array(np.ascontiguousarray(matrix.T)))
    shift = None if bias is None else writer.array(np.asarray(bias))
    _pool_words(writer, module, logits, shift)
    _replace_outputs(model, writer, POOLED, ["batch", len(matrix)])
    return len(matrix)


def add_splade_pooling(model: ModelProto, module: SpladeModule, *, logits: str) -> None:
    """Append the pooling of SPLADE to a graph that has `logits` of words for each token."""
    width, writer = width_of(model, logits), _writer_after(model, logits)
    source = writer.unpadded(logits) if module.strategy == "max" else logits
    _pool_words(writer, module, source, None)
    _replace_outputs(model, writer, POOLED, ["batch", width or "vocabulary"])


def _pool_words(
    writer: SentenceWriter, module: SpladeModule, logits: str, bias: str | None
) -> None:
    if module.strategy == "max":
        logits = writer.over("ReduceMax", logits, 1, keepdims=0)
    state = logits if bias is None else writer.add("Add", logits, bias)
    state = writer.add("Relu", state)
    for _ in range(1 + module.doubles_log):
        state = writer.add("Log", writer.add("Add", state, writer.number(1.0)))
    if module.strategy == "sum":
        state = writer.add("Where", writer.real(), state, writer.number(0.0))
        state = writer.over("ReduceSum", state, 1, keepdims=0)
    writer.graph.plain("Identity", [state], POOLED)


def add_projection(
    model: ModelProto, layers: Sequence[tuple[DenseModule, Weights]], *, tokens: str, width: int
) -> int:
    """Append linear layers after each token's vector; return the width of the last one.

    `vectors` becomes the only output.

    Raises:
        ModelProblem: a layer's weights do not fit, or its activation is not supported.
    """
    writer, state = _writer_after(model, tokens), tokens
    for module, weights in layers:
        state = writer.dense(state, module, weights, width)
        width = module.outputs
    writer.graph.plain("Identity", [state], VECTORS)
    _replace_outputs(model, writer, VECTORS, ["batch", "sequence", width])
    return width


def add_joined(
    model: ModelProto,
    *,
    tokens: str,
    pooled: str,
    vectors: Weights | None,
    sparse: Weights | None,
) -> None:
    """Append linear heads after each token's vector, and an output that joins all vectors.

    The output `joined` of a row is the dense vector, and then for each token its `vectors` and its
    `sparse` weight.
    """
    writer, parts = SentenceWriter(find_opset(model), "joined"), []
    if vectors is not None:
        parts.append(writer.linear(tokens, _named(vectors), "head"))
    if sparse is not None:
        parts.append(writer.add("Relu", writer.linear(tokens, _named(sparse), "head")))
    each = parts[0] if len(parts) == 1 else writer.add("Concat", *parts, axis=-1)
    # The output of a graph may be NaN at padding.
    each = writer.add("Where", writer.real(), each, writer.number(0.0))
    line = writer.add("Flatten", each, axis=1)
    writer.graph.plain("Concat", [pooled, line], JOINED, axis=-1)
    kept = list(model.graph.output)
    _replace_outputs(model, writer, JOINED, ["batch", "values"], kept)


def _writer_after(model: ModelProto, tokens: str) -> SentenceWriter:
    """Remove all outputs except `tokens`, and return a writer of nodes after it."""
    opset = find_opset(model)
    kept = [value for value in model.graph.output if value.name == tokens]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    prune(model)
    return SentenceWriter(opset)


def _replace_outputs(
    model: ModelProto,
    writer: SentenceWriter,
    name: str,
    size: list[str | int],
    kept: Sequence[ValueInfoProto] = (),
) -> None:
    if any(name in node.output for node in model.graph.node):
        raise ModelProblem(f"the graph already has a value `{name}`; rename it")
    model.graph.node.extend(writer.graph.nodes)
    model.graph.initializer.extend(writer.graph.initializers)
    del model.graph.output[:]
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
    model.graph.output.extend([*kept, made])
    prune(model)


def _named(weights: Weights) -> Weights:
    return {f"head.{name}": tensor for name, tensor in weights.items()}


def _decoder(head: WordHead, weights: Weights) -> Any:
    own = weights.get(f"{head.decoder}.weight")
    if own is None:
        own = next((t for name, t in weights.items() if name.endswith(_EMBEDDINGS)), None)
    if own is None:
        raise ModelProblem(f"the weight `{head.decoder}.weight` is missing")
    return own


def _default_epsilon(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 1e-5 if name == "norm_eps" else 1e-12
