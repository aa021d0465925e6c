"""Describes the text encoder of CLIP (Radford et al. 2021, arXiv:2103.00020).

A token sees only itself and the tokens before it. The vector of a text is the state of its end
token, and its projection if the checkpoint has one. The weights have the names of `transformers`
(Apache-2.0), `models/clip`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from sluicegate.backends.model_tools.graphs.stack import (
    AttentionKind,
    Names,
    StackShape,
    find_activation,
    rename_weights,
)
from sluicegate.backends.model_tools.graphs.weights import Weights

_ALL = "full_attention"
_NAMES: Names = MappingProxyType(
    {
        "embeddings.token_embedding": "embeddings.words",
        "embeddings.position_embedding": "embeddings.positions",
        "encoder.layers.*.layer_norm1": "layers.*.attention.norm",
        "encoder.layers.*.self_attn.q_proj": "layers.*.attention.query",
        "encoder.layers.*.self_attn.k_proj": "layers.*.attention.key",
        "encoder.layers.*.self_attn.v_proj": "layers.*.attention.value",
        "encoder.layers.*.self_attn.out_proj": "layers.*.attention.output",
        "encoder.layers.*.layer_norm2": "layers.*.mlp.norm",
        "encoder.layers.*.mlp.fc1": "layers.*.mlp.up",
        "encoder.layers.*.mlp.fc2": "layers.*.mlp.down",
        "final_layer_norm": "norm",
    }
)


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float
    hidden_act: str


def describe_clip(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of CLIP's text encoder, and its weights with the names of `stack`.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
    """
    fields = msgspec.convert(config, _Fields)
    shape = StackShape(
        hidden=fields.hidden_size,
        heads=fields.num_attention_heads,
        head_width=fields.hidden_size // fields.num_attention_heads,
        positions=fields.max_position_embeddings,
        attention=[_ALL] * fields.num_hidden_layers,
        kinds={_ALL: AttentionKind()},
        epsilon=fields.layer_norm_eps,
        activation=find_activation(fields.hidden_act),
        causal=True,
        gated=False,
        learned_positions=True,
    )
    return shape, rename_weights(weights, _NAMES)
