"""Options of decoders that no graph computes are refused by name."""

from typing import Any

import numpy as np
import pytest

from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.weights import WeightsError
from sluicegate.backends.repository.config_defaults import complete_config

SLIDING = ["sliding_attention", "full_attention"]
SIZES = {
    "vocab_size": 9,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 16,
    "architectures": ["Model"],
}
QWEN, GEMMA = {**SIZES, "model_type": "qwen3"}, {**SIZES, "model_type": "gemma3_text"}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (QWEN | {"hidden_act": "xielu"}, "hidden_act"),
        (QWEN | {"is_causal": False}, "is_causal"),
        (QWEN | {"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        (QWEN | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (QWEN | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (QWEN | {"layer_types": SLIDING}, "sliding_window"),
        (QWEN | {"layer_types": ["full_attention"]}, "layer_types"),
        (QWEN | {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        (QWEN | {"architectures": ["Qwen3ForMultipleChoice"]}, "multiple choice"),
        (GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        (GEMMA | {"hidden_activation": "tanh"}, "hidden_activation"),
        (GEMMA | {"sliding_window": None, "layer_types": SLIDING}, "sliding_window"),
        (
            GEMMA
            | {"architectures": ["Gemma3ForCausalLM"], "ranking_token_ids": (1, 2)}
            | {"final_logit_softcapping": 30.0},
            "final_logit_softcapping",
        ),
    ],
)
def test_an_option_that_is_not_computed_is_refused_by_name(
    config: dict[str, Any], named: str
) -> None:
    weights = {"embed_tokens.weight": np.zeros((9, 8), dtype=np.float32)}

    with pytest.raises(WeightsError, match=named):
        build_checkpoint(complete_config(config), weights)


@pytest.mark.parametrize("config", [QWEN, GEMMA])
def test_a_missing_weight_has_the_name_of_the_checkpoint(config: dict[str, Any]) -> None:
    weights = {"model.embed_tokens.weight": np.zeros((9, 8), dtype=np.float32)}

    with pytest.raises(WeightsError, match=r"layers\.0\.input_layernorm\.weight"):
        build_checkpoint(complete_config(config), weights)
