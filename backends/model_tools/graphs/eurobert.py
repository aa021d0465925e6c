"""Describes EuroBERT encoders (Boizard et al. 2025, arXiv:2503.05500).

Their layers are those of Llama, but every token sees all tokens. The weights have the names of
`transformers` (Apache-2.0), `models/eurobert`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from sluicegate.backends.model_tools.graphs.rotary import read_rotary
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
        "embed_tokens": "embeddings.words",
        "layers.*.input_layernorm": "layers.*.attention.norm",
        "layers.*.self_attn.q_proj": "layers.*.attention.query",
        "layers.*.self_attn.k_proj": "layers.*.attention.key",
        "layers.*.self_attn.v_proj": "layers.*.attention.value",
        "layers.*.self_attn.o_proj": "layers.*.attention.output",
        "layers.*.post_attention_layernorm": "layers.*.mlp.norm",
        "layers.*.mlp.gate_proj": "layers.*.mlp.gate",
        "layers.*.mlp.up_proj": "layers.*.mlp.up",
        "layers.*.mlp.down_proj": "layers.*.mlp.down",
        "norm": "norm",
    }
)


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str = "silu"
    num_key_value_heads: int | None = None
    head_dim: int | None = None


def describe_eurobert(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a EuroBERT checkpoint, and its weights with the names of `stack`.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
    """
    fields = msgspec.convert(config, _Fields)
    width = fields.head_dim or fields.hidden_size // fields.num_attention_heads
    rotary = read_rotary(config, theta=10_000.0, width=width)
    shape = StackShape(
        hidden=fields.hidden_size,
        heads=fields.num_attention_heads,
        key_value_heads=fields.num_key_value_heads,
        head_width=width,
        positions=fields.max_position_embeddings,
        attention=[_ALL] * fields.num_hidden_layers,
        kinds={_ALL: AttentionKind(rotary=rotary)},
        epsilon=fields.rms_norm_eps,
        activation=find_activation(fields.hidden_act),
        norm="rms",
    )
    return shape, rename_weights(weights, _NAMES)
