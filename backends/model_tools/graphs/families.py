"""Renames the weights of BERT-like checkpoints to the names of `BertModel`.

DistilBERT has no token types. RoBERTa counts positions from the id of its padding token. MPNet has
no token types, counts like RoBERTa, and has a bias for relative positions. In ELECTRA and ALBERT,
embeddings can be narrower than layers. ALBERT's layers share weights. After the weights are
renamed, and some of them cut, the weights of all these families fit one graph. The names are those
of Hugging Face's `transformers` (Apache-2.0).
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.adapters import UP
from sluicegate.backends.model_tools.graphs.shapes import PROJECTION, BertShape
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.repository.config_defaults import padding_position

# Model types that `build_bert` computes, and the prefix of their weights' names.
PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "bert.",
        "distilbert": "distilbert.",
        "roberta": "roberta.",
        "xlm-roberta": "roberta.",
        "mpnet": "mpnet.",
        "electra": "electra.",
        "albert": "albert.",
    }
)
_DISTIL_NAMES = (
    (r"^transformer\.layer\.", "encoder.layer."),
    (r"\.attention\.q_lin\.", ".attention.self.query."),
    (r"\.attention\.k_lin\.", ".attention.self.key."),
    (r"\.attention\.v_lin\.", ".attention.self.value."),
    (r"\.attention\.out_lin\.", ".attention.output.dense."),
    (r"\.sa_layer_norm\.", ".attention.output.LayerNorm."),
    (r"\.ffn\.lin1\.", ".intermediate.dense."),
    (r"\.ffn\.lin2\.", ".output.dense."),
    (r"\.output_layer_norm\.", ".output.LayerNorm."),
)
_DISTIL_FIELDS = MappingProxyType(
    {
        "num_hidden_layers": "n_layers",
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    }
)
_MPNET_BUCKETS = 32
_MPNET_NAMES = (
    (r"\.attention\.LayerNorm\.", ".attention.output.LayerNorm."),
    (r"\.attention\.attn\.q\.", ".attention.self.query."),
    (r"\.attention\.attn\.k\.", ".attention.self.key."),
    (r"\.attention\.attn\.v\.", ".attention.self.value."),
    (r"\.attention\.attn\.o\.", ".attention.output.dense."),
)
_ALBERT_NAMES = (
    (r"^full_layer_layer_norm\.", "output.LayerNorm."),
    (r"^attention\.(query|key|value)\.", r"attention.self.\1."),
    (r"^attention\.dense\.", "attention.output.dense."),
    (r"^attention\.LayerNorm\.", "attention.output.LayerNorm."),
    (r"^ffn\.", "intermediate.dense."),
    (r"^ffn_output\.", "output.dense."),
)
_ALBERT_LAYER = re.compile(r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.(.+)")
# The number of token types. BERT has one type for each text of a pair.
_TYPES = 2
_TYPE_TABLE = "embeddings.token_type_embeddings.weight"
_Names = tuple[tuple[str, str], ...]


def strip_prefix(weights: Weights, prefix: str) -> Weights:
    """Remove the model's prefix from the names of weights.

    Checkpoints with a head have this prefix.
    """
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def as_bert(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    """Return a checkpoint's shape, and its weights under the names of `BertModel`.

    Raises:
        WeightsError: the family is unknown, a weight is missing, or an option is not
            supported.
    """
    kind = str(config.get("model_type"))
    if kind not in PREFIXES:
        known = ", ".join(f"`{name}`" for name in PREFIXES)
        raise WeightsError(f"`model_type` is `{kind}`; graphs can be built only for {known}")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise WeightsError("the model is a decoder; export it to ONNX and import the graph")
    weights = _modern_norms(strip_prefix(weights, PREFIXES[kind]))
    try:
        return _FAMILIES.get(kind, _roberta)(config, weights)
    except (KeyError, TypeError) as error:
        raise WeightsError(f"`config.json` or the weights lack {error}") from None
    except ValueError as error:
        raise WeightsError(str(error)) from None


def _modern_norms(weights: Weights) -> Weights:
    """Rename the layer normalizations of checkpoints that were converted from TensorFlow."""
    return {
        re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"\.gamma$", ".weight", name)): tensor
        for name, tensor in weights.items()
    }


def _distilbert(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    bert = {field: config[name] for field, name in _DISTIL_FIELDS.items()}
    shape = BertShape.from_config(
        dict(config) | bert | {"type_vocab_size": _TYPES, "layer_norm_eps": 1e-12}
    )
    renamed = {_rename(name, _DISTIL_NAMES): tensor for name, tensor in weights.items()}
    return shape, renamed | {_TYPE_TABLE: _no_types(shape)}


def _bert(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    return BertShape.from_config(config), weights


def _roberta(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    """Remove embeddings of positions before the padding token's position, as no token has them."""
    shape, padding = BertShape.from_config(config), padding_position(config) or 0
    if padding >= shape.positions:
        raise WeightsError(
            f"`pad_token_id` is {padding}, but there are {shape.positions} positions"
        )
    table = "embeddings.position_embeddings"
    shape = msgspec.structs.replace(shape, positions=shape.positions - padding, padding=padding)
    names = [name for name in (f"{table}.weight", f"{table}.{UP}") if name in weights]
    return shape, {**weights, **{name: weights[name][padding:] for name in names}}


def _mpnet(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    # MPNet has 32 buckets, whatever its configuration says.
    shape, weights = _roberta({**config, "type_vocab_size": _TYPES}, weights)
    shape = msgspec.structs.replace(shape, buckets=_MPNET_BUCKETS)
    renamed = {_rename(name, _MPNET_NAMES): tensor for name, tensor in weights.items()}
    return shape, renamed | {_TYPE_TABLE: _no_types(shape)}


def _electra(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    shape = BertShape.from_config(config)
    width = config.get("embedding_size", shape.hidden)
    narrow = width if width != shape.hidden else None
    return msgspec.structs.replace(shape, embedding=narrow), weights


def _albert(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    """Name the weights of every layer; layers of one group share the same arrays."""
    groups, inner = config.get("num_hidden_groups", 1), config.get("inner_group_num", 1)
    layers = config["num_hidden_layers"]
    known = {"hidden_act": "gelu_new"} | dict(config) | {"num_hidden_layers": layers * inner}
    shape = BertShape.from_config(known)
    shape = msgspec.structs.replace(shape, embedding=config.get("embedding_size", 128))
    renamed: dict[str, NDArray[np.float32]] = {}
    for name, tensor in weights.items():
        if (found := _ALBERT_LAYER.fullmatch(name)) is None:
            renamed[name.replace("encoder.embedding_hidden_mapping_in", PROJECTION)] = tensor
            continue
        group, place, own = int(found[1]), int(found[2]), _rename(found[3], _ALBERT_NAMES)
        for layer in range(layers):
            if layer * groups // layers == group:
                renamed[f"encoder.layer.{layer * inner + place}.{own}"] = tensor
    return shape, renamed


def _rename(name: str, rules: _Names) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _no_types(shape: BertShape) -> NDArray[np.float32]:
    return np.zeros((_TYPES, shape.hidden), dtype=np.float32)


_FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Weights], tuple[BertShape, Weights]]] = (
    MappingProxyType(
        {
            "bert": _bert,
            "distilbert": _distilbert,
            "mpnet": _mpnet,
            "electra": _electra,
            "albert": _albert,
        }
    )
)
