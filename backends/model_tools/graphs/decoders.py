"""Describes decoders that are used as encoders: Qwen3 and Gemma 3 for texts.

Both normalize by the root of the mean square, turn queries and keys, normalize each of their heads,
and let several queries share a key. The fields and defaults are those of `transformers` 5.23.0
(Apache-2.0), `src/transformers/models/{qwen3,gemma3}/configuration_*.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from sluicegate.backends.model_tools.graphs.graph_builder import Activation
from sluicegate.backends.model_tools.graphs.rotary import Rotary
from sluicegate.backends.model_tools.graphs.stack import (
    AttentionKind,
    Names,
    StackShape,
    rename_weights,
)
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

_Layer = Literal["full_attention", "sliding_attention"]
_FULL: _Layer = "full_attention"
_SLIDING: _Layer = "sliding_attention"
_ActivationName = Literal["silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu"]
_ACTIVATIONS: Mapping[_ActivationName, Activation] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "relu": "relu",
    }
)
_ATTENTION = "layers.*.self_attn"
_NAMES: Names = MappingProxyType(
    {
        "embed_tokens": "embeddings.words",
        "layers.*.input_layernorm": "layers.*.attention.norm",
        f"{_ATTENTION}.q_proj": "layers.*.attention.query",
        f"{_ATTENTION}.k_proj": "layers.*.attention.key",
        f"{_ATTENTION}.v_proj": "layers.*.attention.value",
        f"{_ATTENTION}.o_proj": "layers.*.attention.output",
        f"{_ATTENTION}.q_norm": "layers.*.attention.query_norm",
        f"{_ATTENTION}.k_norm": "layers.*.attention.key_norm",
        "layers.*.mlp.gate_proj": "layers.*.mlp.gate",
        "layers.*.mlp.up_proj": "layers.*.mlp.up",
        "layers.*.mlp.down_proj": "layers.*.mlp.down",
        "norm": "norm",
    }
)
_QWEN3_NAMES: Names = MappingProxyType(
    {**_NAMES, "layers.*.post_attention_layernorm": "layers.*.mlp.norm"}
)
_GEMMA3_NAMES: Names = MappingProxyType(
    {
        **_NAMES,
        "layers.*.post_attention_layernorm": "layers.*.attention.branch_norm",
        "layers.*.pre_feedforward_layernorm": "layers.*.mlp.norm",
        "layers.*.post_feedforward_layernorm": "layers.*.mlp.branch_norm",
    }
)


class _DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the fields of `config.json` that both families have."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    layer_types: list[_Layer] | None = None
    sliding_window: int | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    is_causal: Literal[True] = True

    def kind(self, *, theta: float, reach: int | None, scaling: Mapping[str, Any]) -> AttentionKind:
        """Return the attention of some layers.

        Raises:
            WeightsError: only a part of each head is turned.
        """
        if scaling.get("partial_rotary_factor", self.partial_rotary_factor or 1) != 1:
            raise WeightsError("`partial_rotary_factor` must be 1")
        rotary = Rotary(
            theta=float(scaling.get("rope_theta", theta)),
            width=self.head_dim,
            positions=self.max_position_embeddings,
            scaling=scaling,
        )
        return AttentionKind(rotary=rotary, reach=reach)

    def stack(
        self,
        attention: list[_Layer],
        kinds: Mapping[str, AttentionKind],
        activation: _ActivationName,
        *,
        causal: bool,
    ) -> StackShape:
        """Return the layers, as far as both families agree."""
        if len(attention) != self.num_hidden_layers:
            raise WeightsError(
                f"`layer_types` has {len(attention)} layers, not {self.num_hidden_layers}"
            )
        return StackShape(
            hidden=self.hidden_size,
            heads=self.num_attention_heads,
            key_value_heads=self.num_key_value_heads,
            head_width=self.head_dim,
            positions=self.max_position_embeddings,
            attention=attention,
            kinds=kinds,
            epsilon=self.rms_norm_eps,
            activation=_ACTIVATIONS[activation],
            causal=causal,
            norm="rms",
            head_norms=True,
        )

    def window(self, attention: list[_Layer]) -> int | None:
        """Return the number of tokens of the sliding window; `None` without such layers."""
        if _SLIDING not in attention:
            return None
        if self.sliding_window is None:
            raise WeightsError(f"`layer_types` has `{_SLIDING}`, but `sliding_window` is missing")
        return self.sliding_window


class _Qwen3Shape(_DecoderShape, frozen=True, kw_only=True):
    hidden_act: _ActivationName = "silu"
    use_sliding_window: bool = False
    max_window_layers: int = 28


class _Gemma3Shape(_DecoderShape, frozen=True, kw_only=True):
    hidden_activation: _ActivationName = "gelu_pytorch_tanh"
    query_pre_attn_scalar: float = 256
    sliding_window_pattern: int = 6
    rope_local_base_freq: float = 10_000.0
    use_bidirectional_attention: bool | None = False
    attn_logit_softcapping: None = None


def describe_qwen3(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a Qwen3 checkpoint, and its weights with the names of `stack`.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type, or an unknown activation.
        KeyError: a weight is missing.
    """
    shape = msgspec.convert(config, _Qwen3Shape)
    if not shape.use_sliding_window:
        shape = msgspec.structs.replace(shape, sliding_window=None)
    attention = shape.layer_types or [
        _SLIDING if shape.sliding_window is not None and layer >= shape.max_window_layers else _FULL
        for layer in range(shape.num_hidden_layers)
    ]
    scaling = shape.rope_scaling or shape.rope_parameters or {}
    theta, window = shape.rope_theta or 10_000.0, shape.window(attention)
    kinds: dict[str, AttentionKind] = {
        _FULL: shape.kind(theta=theta, reach=None, scaling=scaling),
        _SLIDING: shape.kind(theta=theta, reach=window and window - 1, scaling=scaling),
    }
    stack = shape.stack(attention, kinds, shape.hidden_act, causal=True)
    return stack, rename_weights(weights, _QWEN3_NAMES)


def describe_gemma3(config: Mapping[str, Any], weights: Weights) -> tuple[StackShape, Weights]:
    """Return the layers of a Gemma 3 checkpoint for texts, and its weights with those names.

    Normalizations multiply by 1 plus their weight.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type, or an unknown activation.
        KeyError: a weight is missing.
    """
    shape = msgspec.convert(config, _Gemma3Shape)
    attention = shape.layer_types or [
        _SLIDING if (layer + 1) % shape.sliding_window_pattern else _FULL
        for layer in range(shape.num_hidden_layers)
    ]
    given = shape.rope_parameters or {}
    full = {**(given.get(_FULL) or {}), **(shape.rope_scaling or {})}
    window, both_ways = shape.window(attention), bool(shape.use_bidirectional_attention)
    # With attention in both directions, the window has half of its tokens on each side.
    reach = window and (window // 2 if both_ways else window - 1)
    kinds: dict[str, AttentionKind] = {
        _FULL: shape.kind(theta=shape.rope_theta or 1e6, reach=None, scaling=full),
        _SLIDING: shape.kind(
            theta=shape.rope_local_base_freq, reach=reach, scaling=given.get(_SLIDING) or {}
        ),
    }
    stack = shape.stack(attention, kinds, shape.hidden_activation, causal=not both_ways)
    stack = msgspec.structs.replace(
        stack,
        norms="around",
        scale=shape.query_pre_attn_scalar**-0.5,
        embedding_scale=shape.hidden_size**0.5,
    )
    added = {
        name: tensor + np.float32(1) if name.endswith("norm.weight") else tensor
        for name, tensor in weights.items()
    }
    return stack, rename_weights(added, _GEMMA3_NAMES)
