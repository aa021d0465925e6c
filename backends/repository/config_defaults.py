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
        }
    }
)
# Positions of these types begin after the padding token's id. MPNet always pads with token 1,
# whatever its file says. ESM has no default padding token.
_COUNTED = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "esm", *_OTHERS})
_MPNET_PADDING = 1


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the defaults of its model type added."""
    kind = str(config.get("model_type"))
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
