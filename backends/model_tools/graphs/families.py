"""Maps checkpoints of the BERT family to one set of names: those of `BertModel`.

DistilBERT is a BERT without token types, RoBERTa one whose positions begin after the padding's:
renamed, and cut where needed, their weights fit the one graph. The names are those of Hugging
Face's models (`transformers`, Apache-2.0).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.model_tools.graphs.shapes import BertShape
from backends.model_tools.graphs.weights import Weights, WeightsError

# The types that `build_bert` computes; of each, what its weights' names begin with.
PREFIXES: Mapping[str, str] = MappingProxyType(
    {"bert": "bert.", "distilbert": "distilbert.", "roberta": "roberta.", "xlm-roberta": "roberta."}
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
# A text and the one it is paired with; DistilBERT's tokenizer tells them apart, its model does not.
_TYPES = 2


def strip_prefix(weights: Weights, prefix: str) -> Weights:
    """Return weights without the name of the model that a head's checkpoint puts before them."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def as_bert(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    """Return the shape and the weights of a checkpoint, by the names of `BertModel`.

    Raises:
        WeightsError: it is of another family, lacks a weight, or asks for what no graph computes.
    """
    kind = str(config.get("model_type"))
    if kind not in PREFIXES:
        known = ", ".join(f"`{name}`" for name in PREFIXES)
        raise WeightsError(f"`model_type` is `{kind}`; graphs can be built of {known}")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise WeightsError("a decoder is no encoder; export it to ONNX instead")
    weights = _modern_norms(strip_prefix(weights, PREFIXES[kind]))
    try:
        if kind == "distilbert":
            return _distilbert(config, weights)
        shape = BertShape.from_config(config)
        if kind == "bert":
            return shape, weights
        return _roberta(config, shape, weights)
    except (KeyError, TypeError) as error:
        raise WeightsError(f"`config.json` or the weights lack {error}") from None
    except ValueError as error:
        raise WeightsError(str(error)) from None


def _modern_norms(weights: Weights) -> Weights:
    """Rename the layer normalisations of checkpoints converted from TensorFlow."""
    return {
        re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"\.gamma$", ".weight", name)): tensor
        for name, tensor in weights.items()
    }


def _distilbert(config: Mapping[str, Any], weights: Weights) -> tuple[BertShape, Weights]:
    bert = {field: config[name] for field, name in _DISTIL_FIELDS.items()}
    shape = BertShape.from_config(
        dict(config) | bert | {"type_vocab_size": _TYPES, "layer_norm_eps": 1e-12}
    )
    renamed: dict[str, NDArray[np.float32]] = {}
    for name, tensor in weights.items():
        for pattern, replacement in _DISTIL_NAMES:
            name = re.sub(pattern, replacement, name)  # noqa: PLW2901 - one rename after another
        renamed[name] = tensor
    types = np.zeros((_TYPES, shape.hidden), dtype=np.float32)
    renamed["embeddings.token_type_embeddings.weight"] = types
    return shape, renamed


def _roberta(
    config: Mapping[str, Any], shape: BertShape, weights: Weights
) -> tuple[BertShape, Weights]:
    """Cut the positions that no token has: rows are padded on the right, so they count from one."""
    first = int(config.get("pad_token_id") or 0) + 1
    name = "embeddings.position_embeddings.weight"
    shape = msgspec.structs.replace(shape, positions=shape.positions - first)
    return shape, {**weights, name: weights[name][first:]}
