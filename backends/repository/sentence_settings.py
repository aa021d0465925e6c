"""Reads the text limits, prompts and score function of a sentence transformer.

The limits are in `sentence_bert_config.json`. Prompts and the activation of a cross-encoder are in
`config_sentence_transformers.json`. A setting that is not supported is an error.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.repository.sentence_modules import Files, read_object
from sluicegate.wire.protocol import Function

# Older versions of sentence transformers put the model's family into the file name.
LIMIT_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
PROMPT_FILE = "config_sentence_transformers.json"
_CONFIG = "config.json"
_KNOWN_LIMITS = {"max_seq_length", "do_lower_case", "unpad_inputs", "module_output_name"}
# The model type of late interaction, and its own limits, which an import reads.
LATE = "MultiVectorEncoder"
LATE_LIMITS = ("query_length", "document_length", "query_expansion")
_TASKS = {"feature-extraction", "sequence-classification", "fill-mask"}
_COSINE = {None, "cosine"}
_FUNCTIONS: Mapping[str, Function] = MappingProxyType({"Identity": "none", "Sigmoid": "sigmoid"})
_TORCH = "torch."


class TextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the token limit of texts, whether texts are lower-cased, and the source file."""

    source: str
    max_tokens: int | None
    lowercase: bool


class SentencePrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the prompts that are put before every text, before queries and before documents.

    `similarity` is the model's similarity function, or `None` for the cosine.
    """

    default: str = ""
    query: str = ""
    document: str = ""
    similarity: str | None = None


def read_limits(files: Files) -> TextLimits | None:
    """Return the text limits that the publisher of a model set; `None` if there are none.

    Raises:
        ModelProblem: the file cannot be read, or has a setting that is not supported.
    """
    name = next((name for name in LIMIT_FILES if files(name).is_file()), None)
    if name is None:
        return None
    path = files(name)
    config = read_object(path)
    modalities = config.pop("modality_config", None) or {"text": {}}
    task = config.pop("transformer_task", "feature-extraction")
    if task not in _TASKS or set(modalities) != {"text"}:
        inputs = ", ".join(modalities)
        raise ModelProblem(f"{path}: a model with task `{task}` and inputs {inputs} is not served")
    late = read_object(files(PROMPT_FILE)).get("model_type") == LATE
    for field, value in config.items():
        if (
            field not in _KNOWN_LIMITS
            and not (late and field in LATE_LIMITS)
            and value not in (None, False, {}, [])
        ):
            raise ModelProblem(f"{path}: `{field}` is not supported; remove it if you can")
    length = config.get("max_seq_length")
    return TextLimits(
        source=name,
        max_tokens=length if isinstance(length, int) else None,
        lowercase=bool(config.get("do_lower_case")),
    )


def read_prompts(files: Files) -> SentencePrompts:
    """Return the prompts that `encode`, `encode_query` and `encode_document` use.

    Raises:
        ModelProblem: the file cannot be read, or `default_prompt_name` names no prompt.
    """
    path = files(PROMPT_FILE)
    config = read_object(path)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise ModelProblem(f"{path}: `prompts` must map names to texts")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelProblem(
            f"{path}: `default_prompt_name` is `{default}`, which is not in `prompts`; add it to "
            "`prompts`, or remove `default_prompt_name`"
        )
    similarity = config.get("similarity_fn_name")
    return SentencePrompts(
        default=prompts[default] if default is not None else "",
        query=prompts.get("query", ""),
        document=prompts.get("document", ""),
        similarity=None if similarity in _COSINE else str(similarity),
    )


def read_score_function(files: Files) -> tuple[Function, str] | None:
    """Return a cross-encoder's score function, and the name of the file that sets it.

    Raises:
        ModelProblem: the function is not supported.
    """
    own, config = read_object(files(PROMPT_FILE)), read_object(files(_CONFIG))
    nested = config.get("sentence_transformers")
    named: list[tuple[Path, Any]] = [
        (files(PROMPT_FILE), own.get("activation_fn")),
        (files(_CONFIG), nested.get("activation_fn") if isinstance(nested, dict) else None),
        (files(_CONFIG), config.get("sbert_ce_default_activation_function")),
    ]
    path, name = next(((path, name) for path, name in named if name), (None, None))
    if path is None:
        return None
    function = _FUNCTIONS.get(str(name).rpartition(".")[2])
    if function is None or not str(name).startswith(_TORCH):
        raise ModelProblem(
            f"{path}: the activation `{name}` is not supported; use one of torch's "
            f"{', '.join(f'`{known}`' for known in _FUNCTIONS)}"
        )
    return function, path.name
