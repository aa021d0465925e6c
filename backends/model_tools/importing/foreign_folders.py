"""Explains why a folder without `config.json` cannot be imported."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from backends.errors import StartProblem
from backends.repository.sentence_modules import read_modules

ADAPTER = "adapter_config.json"
_MERGE = (
    "is an adapter (such as LoRA), not a model; merge it into its model with "
    "`merge_and_unload()`, save the result and import that"
)
_ONNX = "if it needs only token ids, export it to ONNX and import that"
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "gliner_config.json": "is a GLiNER model, which is not supported; run it as a custom "
        "`algorithm`",
        "config_setfit.json": "is a SetFit model without its encoder; copy all of its files",
        "model_index.json": "is a diffusers pipeline, which generates images; it is not supported",
        "open_clip_config.json": "is an OpenCLIP model, which reads images; it is not supported",
        "params.json": "has the weights of a language model in its vendor's format, which is not "
        "supported",
        "meta.json": "is a spaCy pipeline, which is not supported; run it as a custom `algorithm`",
        "flair_config.json": f"is a Flair model, which is not supported; {_ONNX}",
        "config_sentence_transformers.json": "is a sentence transformer without `config.json`; "
        "save it again with sentence-transformers, or copy all of its files",
    }
)
_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "*.gguf": "has weights for llama.cpp, which are not supported; import the model's "
        "safetensors or ONNX",
        "*.ftz": "is a fastText model, which is not supported",
        "*.onnx": "has a graph without a `config.json`; copy the `config.json` of the model that "
        "was exported",
    }
)


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter.

    Raises:
        StartProblem: the folder has an adapter, with or without the adapted model.
    """
    if (folder / ADAPTER).is_file():
        raise StartProblem(f"`{folder / ADAPTER}`: the folder {_MERGE}")


def not_a_model(folder: Path) -> StartProblem:
    """Return the error for a folder that has no `config.json`.

    Raises:
        ModelProblem: the folder has a sentence transformer's module that is not supported.
    """
    read_modules(lambda name: folder / name)
    for name, what in _KINDS.items():
        if (folder / name).is_file():
            return StartProblem(f"`{folder}` {what} (it has `{name}` but no `config.json`)")
    for pattern, what in _PATTERNS.items():
        if found := sorted(folder.glob(pattern)):
            return StartProblem(f"`{folder}` {what} (it has `{found[0].name}`)")
    return StartProblem(f"`{folder}` has no `config.json`, so it is not a Hugging Face model")
