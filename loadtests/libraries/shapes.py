"""Lists the models to compare, in the shapes of published models; weights are random."""

from typing import Any

import msgspec

LABELS = ["person", "city", "date of birth", "organisation", "award"]
THRESHOLD = 0.5
THREADS = 2


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its kind of output, its class in `transformers`, and its configuration.

    `layers` says how many layers are measured, if these are fewer than published.
    """

    name: str
    kind: str
    model: str = ""
    config: dict[str, Any] = {}
    layers: str = ""
    texts: int = 128


_BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}
SHAPES = (
    Shape(
        name="Qwen3-0.6B",
        kind="dense",
        model="Qwen3",
        config={
            "vocab_size": 151_669,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "num_hidden_layers": 4,
            "max_position_embeddings": 32_768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        layers="4 of 28",
    ),
    Shape(
        name="GTE-base",
        kind="dense",
        model="Gte",
        config={
            **_BASE,
            "vocab_size": 30_528,
            "num_hidden_layers": 6,
            "max_position_embeddings": 8192,
            "type_vocab_size": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
        layers="6 of 12",
    ),
    Shape(
        name="ModernBERT-base",
        kind="dense",
        model="ModernBert",
        config={
            "vocab_size": 50_368,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "num_hidden_layers": 7,
            "max_position_embeddings": 8192,
        },
        layers="7 of 22",
    ),
    Shape(
        name="GLiNER-small",
        kind="entities",
        config={
            "model_type": "deberta-v2",
            **_BASE,
            "num_hidden_layers": 6,
            "vocab_size": 128_100,
            "type_vocab_size": 0,
            "relative_attention": True,
            "position_buckets": 256,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-7,
        },
        texts=64,
    ),
    Shape(
        name="ColBERT-small",
        kind="multi_vector",
        model="Bert",
        config={
            "vocab_size": 30_528,
            "hidden_size": 384,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
            "num_hidden_layers": 12,
        },
    ),
    Shape(
        name="SPLADE (DistilBERT)",
        kind="sparse",
        model="DistilBert",
        config={"vocab_size": 30_522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
        texts=64,
    ),
    Shape(name="potion-base-8M", kind="static", texts=2000),
)
