"""Describes encoders that have the layers of BERT, but rotary positions.

- GTE (Zhang et al. 2024, arXiv:2407.19669), with gated units. The model type `new` is that of the
  published checkpoints, which name the code of `Alibaba-NLP/new-impl`. The model type `gte` is
  that of `transformers`.
- Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613), with gated units and without biases. The
  published checkpoints have the field names of GPT-2.
- The encoder of jina-embeddings-v3 (Sturua et al. 2024, arXiv:2409.10173).

No code that comes with a checkpoint is run. The formulas and the names of the weights are those of
`transformers` (Apache-2.0), `models/gte`, `models/nomic_bert` and `models/jina_embeddings_v3`.
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
from sluicegate.backends.model_tools.graphs.weights import Weights, require

_ALL = "full_attention"
_PARTS = ("query", "key", "value")
_PROJECTIONS = tuple(f"layers.*.attention.{part}" for part in _PARTS)
_EMBEDDINGS: Names = MappingProxyType(
    {
        "embeddings.word_embeddings": "embeddings.words",
        "embeddings.token_type_embeddings": "embeddings.types",
    }
)
_GTE: Names = MappingProxyType(
    {
        **_EMBEDDINGS,
        "embeddings.LayerNorm": "embeddings.norm",
        "encoder.layer.*.attention.qkv_proj": _PROJECTIONS,
        **{
            f"encoder.layer.*.attention.{part[0]}_proj": f"layers.*.attention.{part}"
            for part in _PARTS
        },
        "encoder.layer.*.attention.o_proj": "layers.*.attention.output",
        "encoder.layer.*.attn_ln": "layers.*.attention.norm",
        "encoder.layer.*.mlp.up_gate_proj": ("layers.*.mlp.up", "layers.*.mlp.gate"),
        "encoder.layer.*.mlp.down_proj": "layers.*.mlp.down",
        "encoder.layer.*.mlp_ln": "layers.*.mlp.norm",
    }
)
_NOMIC: Names = MappingProxyType(
    {
        **_EMBEDDINGS,
        "emb_ln": "embeddings.norm",
        "encoder.layers.*.attn.Wqkv": _PROJECTIONS,
        "encoder.layers.*.attn.out_proj": "layers.*.attention.output",
        "encoder.layers.*.norm1": "layers.*.attention.norm",
        "encoder.layers.*.mlp.fc11": "layers.*.mlp.up",
        "encoder.layers.*.mlp.fc12": "layers.*.mlp.gate",
        "encoder.layers.*.mlp.fc2": "layers.*.mlp.down",
        "encoder.layers.*.norm2": "layers.*.mlp.norm",
    }
)
_JINA: Names = MappingProxyType(
    {
        **_EMBEDDINGS,
        "emb_ln": "embeddings.norm",
        "encoder.layers.*.mixer.Wqkv": _PROJECTIONS,
        "encoder.layers.*.mixer.out_proj": "layers.*.attention.output",
        "encoder.layers.*.norm1": "layers.*.attention.norm",
        "encoder.layers.*.mlp.fc1": "layers.*.mlp.up",
        "encoder.layers.*.mlp.fc2": "layers.*.mlp.down",
        "encoder.layers.*.norm2": "layers.*.mlp.norm",
    }
)
# Options of the published code that this module does not compute, and the values that it does.
_GTE_ONLY = MappingProxyType(
    {
        "layer_norm_type": ("layer_norm",),
        "position_embedding_type": ("rope",),
        "logn_attention_scale": (False, None),
    }
)
_NOMIC_ONLY = MappingProxyType(
    {
        "activation_function": ("swiglu",),
        "causal": (False, None),
        "moe_every_n_layers": (0, None),
        "num_experts": (0, None),
        "parallel_block": (False, None),
        "prenorm": (False, None),
        "rotary_emb_fraction": (1, None),
        "rotary_emb_interleaved": (False, None),
        "rotary_emb_scale_base": (None,),
        "rotary_scaling_factor": (None,),
        "scale_attn_by_inverse_layer_idx": (False, None),
        "scale_attn_weights": (True, None),
        "use_rms_norm": (False, None),
    }
)


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float
    hidden_act: str
    type_vocab_size: int
    head_dim: int | None = None


def describe_gte(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a GTE checkpoint, and its weights with the names of `stack`.

    This function and the others raise the same errors:

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
    """
    require(config, _GTE_ONLY)
    theta = 160_000.0 if config["model_type"] == "gte" else 10_000.0
    return _describe(config, theta=theta), rename_weights(weights, _GTE)


def describe_nomic(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a Nomic BERT checkpoint, and its weights with the names of `stack`."""
    require(config, _NOMIC_ONLY)
    # The published code and `transformers` have different defaults.
    theta = 10_000.0 if "n_embd" in config else 1000.0
    return _describe(config, theta=theta), rename_weights(weights, _NOMIC)


def describe_jina(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of jina-embeddings-v3, and its weights with the names of `stack`."""
    require(config, {"truncate_dim": (None,)})
    return _describe(config, theta=20_000.0, gated=False), rename_weights(weights, _JINA)


def _describe(config: Mapping[str, Any], *, theta: float, gated: bool = True) -> StackShape:
    fields = msgspec.convert(config, _Fields)
    width = fields.head_dim or fields.hidden_size // fields.num_attention_heads
    rotary = read_rotary(config, theta=theta, width=width)
    return StackShape(
        hidden=fields.hidden_size,
        heads=fields.num_attention_heads,
        head_width=width,
        positions=fields.max_position_embeddings,
        attention=[_ALL] * fields.num_hidden_layers,
        kinds={_ALL: AttentionKind(rotary=rotary)},
        epsilon=fields.layer_norm_eps,
        activation=find_activation(fields.hidden_act),
        gated=gated,
        norms="after",
        token_types=fields.type_vocab_size > 0,
        embedding_norm=True,
        final_norm=False,
    )
