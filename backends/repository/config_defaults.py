"""Adds the fields that a `config.json` leaves out, with the defaults of its model type.

The defaults are copied from the configuration classes of `transformers` 5.23.0 (Apache-2.0),
`src/transformers/models/*/configuration_*.py`. For model types whose graphs an import can build,
all defaults are here. For other model types, only the default of `pad_token_id` is here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_BERT: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
)
_SIGLIP: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "pad_token_id": 1,
    }
)
# An import builds no graphs for these model types. They count positions from the padding token's
# id.
_OTHERS = (
    *("xlm-roberta-xl", "longformer", "roberta-prelayernorm", "data2vec-text", "xmod", "ibert"),
)
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        **{kind: {"pad_token_id": 1} for kind in _OTHERS},
        "bert": _BERT,
        "distilbert": {
            "vocab_size": 30522,
            "dim": 768,
            "n_layers": 6,
            "n_heads": 12,
            "hidden_dim": 3072,
            "activation": "gelu",
            "max_position_embeddings": 512,
            "pad_token_id": 0,
        },
        "roberta": {**_BERT, "vocab_size": 50265, "pad_token_id": 1},
        "xlm-roberta": {**_BERT, "pad_token_id": 1},
        "camembert": {**_BERT, "pad_token_id": 1},
        "mpnet": {
            **{name: value for name, value in _BERT.items() if name != "type_vocab_size"},
            "vocab_size": 30527,
            "pad_token_id": 1,
        },
        "electra": {
            **_BERT,
            "embedding_size": 128,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "summary_type": "first",
            "summary_use_proj": True,
            "summary_activation": "gelu",
        },
        "albert": {
            **_BERT,
            "vocab_size": 30000,
            "embedding_size": 128,
            "hidden_size": 4096,
            "num_hidden_groups": 1,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "inner_group_num": 1,
            "hidden_act": "gelu_new",
        },
        "deberta-v2": {
            **_BERT,
            "vocab_size": 128100,
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "intermediate_size": 6144,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-7,
            "relative_attention": False,
            "max_relative_positions": -1,
            "position_biased_input": True,
            "pooler_hidden_act": "gelu",
        },
        "modernbert": {
            "vocab_size": 50368,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "hidden_activation": "gelu",
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            "pad_token_id": 50283,
            "local_attention": 128,
            "classifier_pooling": "cls",
            "classifier_bias": False,
            "classifier_activation": "gelu",
        },
        "eurobert": {
            "vocab_size": 128256,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 128001,
            "classifier_pooling": "late",
        },
        "gte": {
            **_BERT,
            "vocab_size": 250048,
            "max_position_embeddings": 8192,
            "type_vocab_size": 1,
            "pad_token_id": 1,
        },
        # As the code of `Alibaba-NLP/new-impl` has them.
        "new": {**_BERT, "max_position_embeddings": 2048, "type_vocab_size": 1},
        "nomic_bert": {
            **_BERT,
            "vocab_size": 30528,
            "max_position_embeddings": 2048,
            "hidden_act": "silu",
        },
        "jina_embeddings_v3": {
            **_BERT,
            "vocab_size": 250002,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 8194,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
        },
        "clip_text_model": {
            "vocab_size": 49408,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "max_position_embeddings": 77,
            "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "eos_token_id": 49407,
        },
        **dict.fromkeys(("siglip_text_model", "siglip2_text_model"), _SIGLIP),
        "t5": {
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "layer_norm_epsilon": 1e-6,
            "feed_forward_proj": "relu",
            "pad_token_id": 0,
        },
        "qwen3": {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
        },
        "gemma3_text": {
            "vocab_size": 262208,
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "pad_token_id": 0,
        },
    }
)
# Other names of the same fields, by model type.
_ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "distilbert": {
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
        "nomic_bert": {
            "n_embd": "hidden_size",
            "n_head": "num_attention_heads",
            "n_layer": "num_hidden_layers",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "rotary_emb_base": "rope_theta",
        },
        "jina_embeddings_v3": {"rotary_emb_base": "rope_theta"},
        "t5": {
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
    }
)
# Positions of these types begin after the padding token's id. MPNet always pads with token 1,
# whatever its file says. ESM has no default padding token.
_COUNTED = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "esm", *_OTHERS})
_MPNET_PADDING = 1


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the defaults of its model type added.

    The published jina-embeddings-v3 has the model type `xlm-roberta`, but needs other code. Its
    model type becomes the one of `transformers`.
    """
    kind = str(config.get("model_type"))
    if kind == "xlm-roberta" and config.get("position_embedding_type") == "rotary":
        kind = "jina_embeddings_v3"
        config = {**config, "model_type": kind}
    aliases = _ALIASES.get(kind, {})
    renamed = {ours: config[theirs] for theirs, ours in aliases.items() if theirs in config}
    return {**DEFAULTS.get(kind, {}), **renamed, **config}


def padding_position(config: Mapping[str, Any]) -> int | None:
    """Return the position of padding tokens, or `None` if positions count from 0.

    In some model types, positions count from the padding token's id. This id is then the position.

    Raises:
        ValueError: the model type counts positions from its padding token, and has no such token.
    """
    kind = config.get("model_type")
    if kind not in _COUNTED:
        return None
    padding = _MPNET_PADDING if kind == "mpnet" else config.get("pad_token_id")
    if not isinstance(padding, int) or padding < 0:
        raise ValueError(f"`pad_token_id` is `{padding}`, and `{kind}` counts positions from it")
    return padding


def padding_id(config: Mapping[str, Any]) -> int:
    """Return the padding token's id; 0 if the configuration has none.

    Raises:
        ValueError: the model type counts positions from its padding token, and has no such token.
    """
    counted = padding_position(config)
    return int(config.get("pad_token_id") or 0) if counted is None else counted
