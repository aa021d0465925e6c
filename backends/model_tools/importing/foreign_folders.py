"""Says what a folder without `config.json` is, which is no Hugging Face model that is imported."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from backends.errors import StartProblem
from backends.repository.sentence_modules import read_modules

ADAPTER = "adapter_config.json"
_MERGE = (
    "is an adapter (LoRA or another), which is not computed alone; merge it into its model with "
    "`merge_and_unload()`, save that and import it"
)
_ONNX = "export it to ONNX with inputs of token ids alone, if it can be, and import that"
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "gliner_config.json": "is a GLiNER model, whose labels are part of its input, which is not "
        "computed; an `algorithm` of your own can run it",
        "config_setfit.json": "is a SetFit model without its encoder; copy all of its files",
        "model_index.json": "is a pipeline of diffusers, which makes images and is not served",
        "open_clip_config.json": "is a model of OpenCLIP, which reads images and is not served",
        "params.json": "has the weights of a language model in its makers' own form, which is not "
        "served",
        "meta.json": "is a pipeline of spaCy, which is not computed; an `algorithm` of yours can "
        "run it",
        "flair_config.json": f"is a model of Flair, which is not computed; {_ONNX}",
        "config_sentence_transformers.json": "is a sentence transformer without `config.json`; "
        "save it again with sentence-transformers, or copy all of its files",
    }
)
_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "*.gguf": "holds weights for llama.cpp, which are not read; take the model with "
        "safetensors or ONNX",
        "*.ftz": "is a model of fastText, which is not computed",
        "*.onnx": "holds a graph and no `config.json`, which says what it is: copy that of the "
        "model that the graph was exported of",
    }
)


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder that holds an adapter, whether its model lies beside it or not.

    Raises:
        StartProblem: it does.
    """
    if (folder / ADAPTER).is_file():
        raise StartProblem(f"`{folder / ADAPTER}`: the folder {_MERGE}")


def not_a_model(folder: Path) -> StartProblem:
    """Return the error of a folder that has no `config.json`.

    Raises:
        ModelProblem: it has modules of sentence transformers that are not computed.
    """
    read_modules(lambda name: folder / name)
    for name, what in _KINDS.items():
        if (folder / name).is_file():
            return StartProblem(f"`{folder}` {what} (it has `{name}` and no `config.json`)")
    for pattern, what in _PATTERNS.items():
        if found := sorted(folder.glob(pattern)):
            return StartProblem(f"`{folder}` {what} (it has `{found[0].name}`)")
    return StartProblem(f"`{folder}` has no `config.json`: it is no Hugging Face model")
