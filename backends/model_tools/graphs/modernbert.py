"""Describes ModernBERT encoders.

ModernBERT (Warner et al. 2024, arXiv:2412.13663) rotates queries and keys instead of adding
position embeddings. It normalizes before each step and has gated feed-forward layers. In most
layers, a token attends only to near tokens.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from sluicegate.backends.model_tools.graphs.rotary import Rotary
from sluicegate.backends.model_tools.graphs.stack import (
    AttentionKind,
    Names,
    StackShape,
    rename_weights,
)
from sluicegate.backends.model_tools.graphs.weights import Weights

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_THETAS = {_GLOBAL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}
_NAMES: Names = MappingProxyType(
    {
        "embeddings.tok_embeddings": "embeddings.words",
        "embeddings.norm": "embeddings.norm",
        "layers.*.attn_norm": "layers.*.attention.norm",
        "layers.*.attn.Wqkv": tuple(
            f"layers.*.attention.{part}" for part in ("query", "key", "value")
        ),
        "layers.*.attn.Wo": "layers.*.attention.output",
        "layers.*.mlp_norm": "layers.*.mlp.norm",
        "layers.*.mlp.Wi": ("layers.*.mlp.gate", "layers.*.mlp.up"),
        "layers.*.mlp.Wo": "layers.*.mlp.down",
        "final_norm": "norm",
    }
)


class ModernBertShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a ModernBERT encoder, with the field names of `config.json`."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    hidden_activation: Literal["gelu"] = "gelu"
    local_attention: int = 128
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    global_attn_every_n_layers: int = 3
    rope_parameters: dict[str, dict[str, Any] | None] | None = None
    rope_scaling: None = None
    global_rope_theta: float | None = None
    local_rope_theta: float | None = None

    def attention(self, layer: int) -> str:
        """Return the kind of attention of a layer: global or local."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return _LOCAL if layer % self.global_attn_every_n_layers else _GLOBAL

    def theta(self, attention: str) -> float:
        """Return the base from which the frequencies of the rotations are computed."""
        found = (self.rope_parameters or {}).get(attention) or {}
        field, default = _THETAS[attention]
        return float(found.get("rope_theta", getattr(self, field) or default))


def describe_modernbert(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a ModernBERT checkpoint, and its weights with the names of `stack`.

    Raises:
        msgspec.ValidationError: the configuration has a wrong type.
        KeyError: a weight is missing.
    """
    shape = msgspec.convert(config, ModernBertShape)
    width = shape.hidden_size // shape.num_attention_heads

    def kind(name: str) -> AttentionKind:
        rotary = Rotary(
            theta=shape.theta(name),
            width=width,
            positions=shape.max_position_embeddings,
            scaling=(shape.rope_parameters or {}).get(name) or {},
        )
        reach = shape.local_attention // 2 if name == _LOCAL else None
        return AttentionKind(rotary=rotary, reach=reach)

    stack = StackShape(
        hidden=shape.hidden_size,
        heads=shape.num_attention_heads,
        head_width=width,
        positions=shape.max_position_embeddings,
        attention=[shape.attention(layer) for layer in range(shape.num_hidden_layers)],
        kinds={name: kind(name) for name in _THETAS},
        epsilon=shape.norm_eps,
        activation=shape.hidden_activation,
        skips_first_norm=True,
        embedding_norm=True,
    )
    return stack, rename_weights(weights, _NAMES)
