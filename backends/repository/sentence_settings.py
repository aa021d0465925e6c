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
_RANKING = {"sequence-classification", "text-generation"}
_TASKS = {"feature-extraction", "fill-mask", *_RANKING}
_MESSAGE = "message"
_COSINE = {None, "cosine"}
_FUNCTIONS: Mapping[str, Function] = MappingProxyType({"Identity": "none", "Sigmoid": "sigmoid"})
_TORCH = "torch."


class TextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the token limit of texts, whether texts are lower-cased, and the source file.

    A model that `chats` reads a query and a document in its chat template.
    """

    source: str
    max_tokens: int | None
    lowercase: bool
    chats: bool = False
    add_generation_prompt: bool = False


class SentencePrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the prompts of a model by their names, and the text of the default prompt.

    `similarity` is the model's similarity function, or `None` for the cosine.
    """

    default: str = ""
    named: dict[str, str] = {}
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
    chats = task in _RANKING and _MESSAGE in modalities
    if task not in _TASKS or set(modalities) - ({_MESSAGE} if chats else set()) != {"text"}:
        inputs = ", ".join(modalities)
        raise ModelProblem(f"{path}: a model with task `{task}` and inputs {inputs} is not served")
    processing = config.pop("processing_kwargs", None) or {}
    prompts = processing.pop("chat_template", None) or {}
    prompted = bool(prompts.pop("add_generation_prompt", False))
    config |= {"processing_kwargs": {**processing, **prompts}}
    if chats and modalities[_MESSAGE].get("format", "flat") != "flat":
        raise ModelProblem(f"{path}: the `format` of messages must be `flat`")
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
        chats=chats,
        add_generation_prompt=prompted,
    )


def read_prompts(files: Files) -> SentencePrompts:
    """Return the prompts that `encode` uses.

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
        named=prompts,
        similarity=None if similarity in _COSINE else str(similarity),
    )


def read_score_function(files: Files) -> tuple[Function, str] | None:
    """Return a cross-encoder's score function, and the field and file that set it.

    Raises:
        ModelProblem: the function is not supported.
    """
    own, config = read_object(files(PROMPT_FILE)), read_object(files(_CONFIG))
    nested = config.get("sentence_transformers")
    nested = nested if isinstance(nested, dict) else {}
    places: list[tuple[Path, str, Mapping[str, Any]]] = [
        (files(PROMPT_FILE), "activation_fn", own),
        (files(_CONFIG), "activation_fn", nested),
        (files(_CONFIG), "sbert_ce_default_activation_function", config),
    ]
    place = next((place for place in places if place[2].get(place[1])), None)
    if place is None:
        return None
    path, field, settings = place
    name = settings[field]
    function = _FUNCTIONS.get(str(name).rpartition(".")[2])
    if function is None or not str(name).startswith(_TORCH):
        raise ModelProblem(
            f"{path}: the activation `{name}` is not supported; use one of torch's "
            f"{', '.join(f'`{known}`' for known in _FUNCTIONS)}"
        )
    return function, f"`{field}` in {path.name}"
