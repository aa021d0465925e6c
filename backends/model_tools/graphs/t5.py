"""Describes T5 encoders (Raffel et al. 2020, arXiv:1910.10683).

Attention has no scale, and no positions but a bias for relative positions. The weights have the
names of `transformers` (Apache-2.0), `models/t5`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from sluicegate.backends.model_tools.graphs.stack import (
    AttentionKind,
    Names,
    RelativeBias,
    StackShape,
    find_activation,
    rename_weights,
)
from sluicegate.backends.model_tools.graphs.weights import Weights, require

_ALL = "full_attention"
_ATTENTION, _UNIT = "encoder.block.*.layer.0", "encoder.block.*.layer.1"
_NAMES: Names = MappingProxyType(
    {
        "shared": "embeddings.words",
        "encoder.embed_tokens": "embeddings.words",
        f"{_ATTENTION}.layer_norm": "layers.*.attention.norm",
        f"{_ATTENTION}.SelfAttention.q": "layers.*.attention.query",
        f"{_ATTENTION}.SelfAttention.k": "layers.*.attention.key",
        f"{_ATTENTION}.SelfAttention.v": "layers.*.attention.value",
        f"{_ATTENTION}.SelfAttention.o": "layers.*.attention.output",
        f"{_ATTENTION}.SelfAttention.relative_attention_bias": "layers.*.attention.relative",
        f"{_UNIT}.layer_norm": "layers.*.mlp.norm",
        f"{_UNIT}.DenseReluDense.wi": "layers.*.mlp.up",
        f"{_UNIT}.DenseReluDense.wi_0": "layers.*.mlp.gate",
        f"{_UNIT}.DenseReluDense.wi_1": "layers.*.mlp.up",
        f"{_UNIT}.DenseReluDense.wo": "layers.*.mlp.down",
        "encoder.final_layer_norm": "norm",
    }
)


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    d_model: int
    d_kv: int
    num_layers: int
    num_heads: int
    layer_norm_epsilon: float
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    feed_forward_proj: str


def describe_t5(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a T5 encoder, and its weights with the names of `stack`.

    Raises:
        WeightsError: the model has a decoder, or an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
    """
    names = config.get("architectures") or ["T5EncoderModel"]
    require({"architectures": names[0]}, {"architectures": _ENCODERS})
    fields = msgspec.convert(config, _Fields)
    gate, _, activation = fields.feed_forward_proj.rpartition("-")
    require({"feed_forward_proj": gate}, {"feed_forward_proj": ("gated", "")})
    # In T5's configurations, this name means the tanh approximation.
    is_tanh = fields.feed_forward_proj == "gated-gelu"
    farthest = fields.relative_attention_max_distance
    shape = StackShape(
        hidden=fields.d_model,
        heads=fields.num_heads,
        head_width=fields.d_kv,
        positions=farthest + 1,
        attention=[_ALL] * fields.num_layers,
        kinds={_ALL: AttentionKind()},
        relative=RelativeBias(buckets=fields.relative_attention_num_buckets, farthest=farthest),
        epsilon=fields.layer_norm_epsilon,
        activation="gelu_tanh" if is_tanh else find_activation(activation),
        gated=gate == "gated",
        scale=1.0,
        norm="rms",
    )
    return shape, rename_weights(weights, _NAMES)


_ENCODERS = ("T5EncoderModel", "T5ForTokenClassification")
