"""Rotary positions are scaled as in transformers, and options that are not computed are refused."""

from typing import Any

import pytest

from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.rotary import Rotary
from sluicegate.backends.model_tools.graphs.weights import WeightsError
from sluicegate.backends.repository.config_defaults import complete_config


# What `ROPE_INIT_FUNCTIONS` of transformers 5.23.0 returns for a base of 1000 and 256 positions.
@pytest.mark.parametrize(
    ("scaling", "frequencies", "factor"),
    [
        (
            {"rope_type": "linear", "factor": 4.0},
            [0.25, 0.04445698, 0.007905695, 0.001405853],
            1.0,
        ),
        (
            {"rope_type": "dynamic", "factor": 4.0},
            [1.0, 0.1778279, 0.03162278, 0.005623413],
            1.0,
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            [1.0, 0.1111425, 0.007905695, 0.001405853],
            1.1386294,
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 8.0,
                "mscale": 0.7,
                "mscale_all_dim": 1.0,
                "truncate": False,
            },
            [1.0, 0.1111398, 0.005976139, 0.0007029267],
            0.9483559,
        ),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            [1.0, 0.06430987, 0.003952847, 0.0007029267],
            1.0,
        ),
    ],
)
def test_frequencies_are_scaled_as_in_transformers(
    scaling: dict[str, Any], frequencies: list[float], factor: float
) -> None:
    rotary = Rotary(theta=1000.0, width=8, positions=256, scaling=scaling)

    assert rotary.frequencies().tolist() == pytest.approx(frequencies, rel=1e-6)
    assert rotary.factor == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("new", "layer_norm_type", "rms_norm"),
        ("new", "logn_attention_scale", True),
        ("new", "position_embedding_type", "absolute"),
        ("nomic_bert", "activation_function", "gelu"),
        ("nomic_bert", "num_experts", 8),
        ("nomic_bert", "prenorm", True),
        ("nomic_bert", "rotary_emb_fraction", 0.5),
        ("nomic_bert", "rotary_scaling_factor", 2.0),
        ("jina_embeddings_v3", "truncate_dim", 32),
        ("t5", "architectures", ["T5Model"]),
        ("gte", "partial_rotary_factor", 0.5),
        ("eurobert", "clf_pooling", "mean"),
    ],
)
def test_options_that_are_not_computed_are_refused_by_name(
    family: str, field: str, value: Any
) -> None:
    heads = ["EuroBertForSequenceClassification"] if family == "eurobert" else None
    config = complete_config({"model_type": family, "architectures": heads, field: value})

    with pytest.raises(WeightsError, match=f"`{field}`"):
        build_checkpoint(config, {})


@pytest.mark.parametrize("kind", ["longrope", "proportional", "new kind"])
def test_unknown_scalings_are_refused_by_name(kind: str) -> None:
    config = complete_config(
        {"model_type": "eurobert", "rope_parameters": {"rope_type": kind, "factor": 2.0}}
    )

    with pytest.raises(WeightsError, match=f"`{kind}`"):
        build_checkpoint(config, {})
