"""Finds the tokenizer class that `transformers` loads, and whether it returns token type ids.

The rules are those of `AutoTokenizer` in `transformers` 5.23.0 (Apache-2.0). The name of the class
is in `tokenizer_config.json`, or else in `config.json`. If neither file has the name, it follows
from the model's type.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GENERIC = "TokenizersBackend"
"""The class that uses `tokenizer.json` unchanged."""
# By class: whether it sends token types, if `model_input_names` is not set.
CLASSES: Mapping[str, bool] = MappingProxyType(
    {
        GENERIC: False,
        "BertTokenizer": True,
        "DistilBertTokenizer": False,
        "RobertaTokenizer": False,
        "XLMRobertaTokenizer": False,
        "CamembertTokenizer": False,
        "MPNetTokenizer": False,
        "AlbertTokenizer": False,
        "DebertaV2Tokenizer": True,
        "T5Tokenizer": False,
        "CLIPTokenizer": False,
        "SiglipTokenizer": False,
        "Siglip2Tokenizer": False,
        "Qwen2Tokenizer": False,
        "GemmaTokenizer": False,
    }
)
CLASS_TOKENS: Mapping[str, str] = MappingProxyType(
    {
        "BertTokenizer": "[CLS]",
        "DistilBertTokenizer": "[CLS]",
        "RobertaTokenizer": "<s>",
        "XLMRobertaTokenizer": "<s>",
        "CamembertTokenizer": "<s>",
        "MPNetTokenizer": "<s>",
        "AlbertTokenizer": "[CLS]",
        "DebertaV2Tokenizer": "[CLS]",
    }
)
"""By class: the token at the start of a row, if `cls_token` is not set."""
_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "PreTrainedTokenizer": GENERIC,
        "PythonBackend": GENERIC,
        "ElectraTokenizer": "BertTokenizer",
        "MobileBertTokenizer": "BertTokenizer",
        "SqueezeBertTokenizer": "BertTokenizer",
        "LongformerTokenizer": "RobertaTokenizer",
    }
)
_OF_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "bert": "BertTokenizer",
        "distilbert": "BertTokenizer",
        "electra": "BertTokenizer",
        "roberta": "RobertaTokenizer",
        "xlm-roberta": "XLMRobertaTokenizer",
        "camembert": "CamembertTokenizer",
        "mpnet": "MPNetTokenizer",
        "albert": "AlbertTokenizer",
        "deberta-v2": "DebertaV2Tokenizer",
        "modernbert": GENERIC,
        "eurobert": GENERIC,
        "gte": "XLMRobertaTokenizer",
        "nomic_bert": "BertTokenizer",
        "jina_embeddings_v3": "XLMRobertaTokenizer",
        "t5": "T5Tokenizer",
        "clip_text_model": "CLIPTokenizer",
        "siglip_text_model": "SiglipTokenizer",
        "siglip2_text_model": "Siglip2Tokenizer",
        "qwen3": "Qwen2Tokenizer",
        "gemma3_text": "GemmaTokenizer",
    }
)
# This model type gets the generic class, whatever class its files name.
_ALWAYS_GENERIC = "modernbert"


def find_class(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> str | None:
    """Return the name of the tokenizer class for a folder.

    The class may be one that this module does not know. Return `None` if the files name no class
    and the model's type is unknown.
    """
    kind = config.get("model_type")
    named = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    if named is None or kind == _ALWAYS_GENERIC:
        return _OF_TYPE.get(str(kind))
    name = str(named).removesuffix("Fast")
    return _ALIASES.get(name, name)


def sends_types(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> bool | None:
    """Return whether a folder's tokenizer returns token type ids; `None` if this is unknown."""
    names = tokenizer_config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return CLASSES.get(find_class(config, tokenizer_config) or "")
