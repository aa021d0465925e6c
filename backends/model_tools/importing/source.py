"""Reads a Hugging Face folder for an import, and refuses content that an import cannot use."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import numpy as np
import yaml

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.checkpoint import FAMILIES
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError, read_safetensors
from sluicegate.backends.model_tools.importing.class_tokenizer import (
    ClassTokenizer,
    build_tokenizer,
)
from sluicegate.backends.repository.config_defaults import complete_config, padding_position
from sluicegate.backends.repository.sentence_modules import (
    FILE as MODULES,
    SentenceModules,
    read_modules,
)
from sluicegate.backends.types import Pooling

_GRAPHS = ("model.onnx", "onnx/model.onnx")
WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
# The heads of BGE-M3 for sparse vectors and for token vectors.
SPARSE_HEAD, COLBERT_HEAD = "sparse_linear.safetensors", "colbert_linear.safetensors"
_MANIFEST = "model.yaml"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SLOW = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_POINTER = b"version https://git-lfs"
_HEADED = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
_BARE = ("Model", "ForMaskedLM", "ForPreTraining")
# Settings of `config.json` that Sluicegate's own graphs do not support.
_NOT_BUILT = {
    "auto_map": "names custom code, which is not run",
    "quantization_config": "says that the weights are quantized, which is not supported",
    "pruned_heads": "removes attention heads, which is not supported",
}
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")
_LAYERS = ("num_hidden_layers", "n_layers")
_ADAPTED = re.compile(r"\.lora_|\.base_layer\.|\.adapters?\.")
_BASES = {"bert", "distilbert", "roberta", "mpnet", "electra", "albert", "deberta", "model"}
# The modules of the supported families. Those from `cls` on are used only in training.
_PARTS = {
    *("embeddings", "embeddings_project", "encoder", "transformer", "layers", "final_norm"),
    *("pooler", "head", "pre_classifier", "classifier", "sequence_summary", "qa_outputs"),
    *("cls", "lm_head", "predictions", "sop_classifier", "lm_predictions", "mask_predictions"),
    *("vocab_transform", "vocab_layer_norm", "vocab_projector", "decoder"),
    *("discriminator_predictions", "generator_predictions", "generator_lm_head"),
}
_EMBEDDINGS = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight")
_HEAD = re.compile(r"(classifier|pre_classifier|score|qa_outputs|logits_proj)\.")
# What a folder without `config.json` has instead.
_ADAPTER = "adapter_config.json"
_MERGE = (
    "is an adapter (such as LoRA), not a model; merge it into its model with "
    "`merge_and_unload()`, save the result and import that"
)
_ONNX = "if it needs only token ids, export it to ONNX and import that"
_FOREIGN: Mapping[str, str] = MappingProxyType(
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
_FOREIGN_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "*.gguf": "has weights for llama.cpp, which are not supported; import the model's "
        "safetensors or ONNX",
        "*.ftz": "is a fastText model, which is not supported",
        "*.onnx": "has a graph without a `config.json`; copy the `config.json` of the model that "
        "was exported",
    }
)


class CheckpointFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a folder that `save_pretrained` wrote; `graph` is its ONNX file, if any.

    `modules` are the modules of a sentence transformer. `fields` are manifest fields from a
    `model.yaml` in the folder, or from options of the command. `tokenizer` is the tokenizer that
    the folder's tokenizer class builds.
    """

    folder: Path
    config: dict[str, Any]
    graph: Path | None
    modules: SentenceModules | None = None
    fields: dict[str, Any] = {}
    tokenizer: ClassTokenizer

    def weights(self) -> Weights:
        """Return the weights, from one file or several.

        Raises:
            StartProblem: there are no weights, they cannot be read, or `config.json` has a setting
                that is not supported.
        """
        for field, what in _NOT_BUILT.items():
            if self.config.get(field):
                raise StartProblem(
                    f"`{self.folder / 'config.json'}`: `{field}` {what}; export the model to ONNX "
                    "and import that"
                )
        weights = self._read_weights()
        self._check_names(weights)
        self._check_embeddings(weights)
        for name, tensor in weights.items():
            if not np.isfinite(tensor).all():
                raise StartProblem(
                    f"`{self.folder}`: the weight `{name}` has a NaN or an infinity; train the "
                    "model again, or use an earlier checkpoint"
                )
        return weights

    def module_weights(self, folder: str) -> Weights:
        """Return the weights of a sentence transformer's module.

        Raises:
            StartProblem: there are no weights, or they cannot be read.
        """
        path = self.folder / folder / WEIGHTS
        if not path.is_file():
            raise StartProblem(f"`{path}` is missing{_unusable_weights(path.parent)}")
        return self._read(path)

    @property
    def heads(self) -> list[str]:
        """The files of heads after each token's vector."""
        names = (SPARSE_HEAD, COLBERT_HEAD)
        return [name for name in names if (self.folder / name).is_file()]

    def head_weights(self, name: str) -> Weights | None:
        """Return the weights of one of the `heads`; `None` if the folder does not have it.

        Raises:
            StartProblem: the weights cannot be read, or are not those of a linear layer.
        """
        if name not in self.heads:
            return None
        weights = self._read(self.folder / name)
        matrix, hidden = weights.get("weight"), self.config.get("hidden_size")
        fits = matrix is not None and matrix.ndim > 1 and matrix.shape[1] == hidden
        if not fits or set(weights) - {"weight", "bias"}:
            raise StartProblem(
                f"`{self.folder / name}` must have the `weight` of a linear layer with {hidden} "
                "inputs, and its `bias`"
            )
        return weights

    def positions(self) -> int | None:
        """Return the length of the longest row, if `config.json` names it."""
        found = self.config.get("max_position_embeddings")
        padding = padding_position(self.config)
        return found - (0 if padding is None else padding + 1) if isinstance(found, int) else None

    def pooling(self) -> Pooling:
        """Return the pooling to build into the graph.

        The graph can have only a simple pooling, such as the mean. If the model has another
        pooling, a later step appends it. Then this function returns the mean, which has no effect.
        """
        modes = self.modules.pooling if self.modules is not None else ()
        simple: dict[str, Pooling] = {mode: mode for mode in get_args(Pooling)}
        return simple.get(modes[0], "mean") if len(modes) == 1 else "mean"

    def _read_weights(self) -> Weights:
        if (self.folder / WEIGHTS).is_file():
            return self._read(self.folder / WEIGHTS)
        index = self.folder / SHARDS
        if not index.is_file():
            raise StartProblem(
                f"`{self.folder}` has neither `model.onnx` nor `{WEIGHTS}`"
                f"{_unusable_weights(self.folder)}"
            )
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(_is_beside(name) for name in places.values()):
            raise StartProblem(f"`{index}` does not say which files have the weights")
        found: dict[str, Any] = {}
        for shard in sorted(set(places.values())):
            found |= self._read(self.folder / shard)
        missing = sorted(set(places) - set(found))
        if missing:
            raise StartProblem(
                f"`{index}` names `{missing[0]}`, but `{places[missing[0]]}` does not have it"
            )
        return found

    def _read(self, path: Path) -> Weights:
        check_content(path)
        try:
            return read_safetensors(path)
        except WeightsError as error:
            raise StartProblem(str(error)) from None

    def _check_names(self, weights: Weights) -> None:
        """Refuse weights that a model with this `config.json` would not use."""
        layers = next(
            (self.config[n] for n in _LAYERS if isinstance(self.config.get(n), int)), None
        )
        names = self.config.get("architectures") or ["Model"]
        is_bare = str(names[0]).endswith(_BARE)
        for name in weights:
            found = _LAYER.search(name)
            if found and layers is not None and int(found[1]) >= layers:
                raise StartProblem(
                    f"`{self.folder / 'config.json'}` says {layers} layers, but the weights have "
                    f"`{name}`; correct the number of layers"
                )
            if _ADAPTED.search(name):
                raise StartProblem(
                    f"`{self.folder}`: `{name}` belongs to an adapter, which is not supported; "
                    "merge it with `merge_and_unload()` and save the model"
                )
            if self.config.get("model_type") in FAMILIES and _part(name) not in _PARTS:
                raise StartProblem(
                    f"`{self.folder}`: no layer of a `{self.config['model_type']}` has the weight "
                    f"`{name}`; export the model to ONNX and import that"
                )
            if is_bare and _HEAD.match(name):
                raise StartProblem(
                    f"`{self.folder / 'config.json'}` names no head in `architectures`, but the "
                    f"weights have `{name}`; name the class that the model was trained with"
                )

    def _check_embeddings(self, weights: Weights) -> None:
        """Refuse a tokenizer with a token that has no embedding."""
        rows = next((len(t) for name, t in weights.items() if name.endswith(_EMBEDDINGS)), None)
        path = self.folder / str(self.fields.get("tokenizer", "tokenizer.json"))
        vocabulary = self.tokenizer.load().get_vocab()
        token, number = max(vocabulary.items(), key=lambda item: item[1])
        if rows is not None and number >= rows:
            raise StartProblem(
                f"`{path}`: the token `{token}` has the id {number}, but the model has {rows} "
                "embeddings; call `model.resize_token_embeddings(len(tokenizer))`, and save both"
            )


def open_source(folder: Path, given: Mapping[str, Any] | None = None) -> CheckpointFolder:
    """Return the content of a folder; fields in `given` override fields of its `model.yaml`.

    Raises:
        StartProblem: the folder has no model; the message says what is missing.
    """
    if not folder.is_dir():
        raise StartProblem(f"`{folder}` is not a folder; name the model's folder")
    fields = {**_read_fields(folder / _MANIFEST), **(given or {})}
    tokenizer = folder / str(fields.get("tokenizer", "tokenizer.json"))
    _refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        raise _not_a_model(folder)
    if not tokenizer.is_file():
        slow = next((f" (it has `{name}`)" for name in _SLOW if (folder / name).is_file()), "")
        raise StartProblem(
            f"`{folder}` has no `{tokenizer.name}`{slow}; save the tokenizer with "
            "`AutoTokenizer.from_pretrained(...).save_pretrained(...)`"
        )
    check_content(tokenizer)
    config = complete_config(read_json(folder / "config.json"))
    source = CheckpointFolder(
        folder=folder,
        config=config,
        graph=_find_graph(folder, fields.get("graph")),
        modules=read_modules(lambda name: folder / name),
        fields=fields,
        tokenizer=build_tokenizer(folder, tokenizer.name, config),
    )
    names = source.config.get("architectures") or [""]
    if source.modules is not None and str(names[0]).endswith(_HEADED):
        raise StartProblem(
            f"`{folder / MODULES}` pools token vectors, but `config.json` names the head "
            f"`{names[0]}`; remove the file, or name the encoder's class in `architectures`"
        )
    return source


def _read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a `model.yaml` in a checkpoint's folder, if there is one."""
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise StartProblem(f"cannot read `{path}` as YAML: {reason}") from None
    if not isinstance(fields or {}, dict):
        raise StartProblem(f"`{path}` must map fields to values")
    kind = (fields or {}).get("kind", "encoder")
    if kind not in ("encoder", "classifier") or "upstream" in (fields or {}):
        raise StartProblem(
            f"`{path}`: only an `encoder` or a `classifier` with its own graph can be imported; "
            "copy other models into the repository"
        )
    return fields or {}


def _find_graph(folder: Path, named: Any) -> Path | None:
    if named is not None and not (folder / str(named)).is_file():
        raise StartProblem(f"`{folder / _MANIFEST}` names `{named}`, which does not exist")
    names = _GRAPHS if named is None else (str(named),)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def check_content(path: Path) -> None:
    """Refuse a Git LFS pointer, because the file that it stands for was not fetched.

    Raises:
        StartProblem: the file is a pointer of Git LFS.
    """
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise StartProblem(f"`{path}` is a pointer of Git LFS: fetch it with `git lfs pull`")


def _unusable_weights(folder: Path) -> str:
    """Return which weights in a folder cannot be used, and what to do."""
    remedy = "save the model with `save_pretrained(folder, safe_serialization=True)`"
    pickle = next((name for name in _PICKLES if (folder / name).is_file()), None)
    if pickle is not None:
        return f"; `{pickle}` is a pickle, which runs code when it is read: {remedy}"
    others = sorted(p.name for p in folder.glob("*") if p.suffix in {".safetensors", ".onnx"})
    if others:
        return f"; it has `{others[0]}`: rename it, or name a graph as `graph` in a `{_MANIFEST}`"
    return f"; {remedy}, or export it to ONNX"


def _part(name: str) -> str:
    """Return the module of the model to which a weight belongs, judged by the weight's name."""
    return next((part for part in name.split(".") if part not in _BASES), name)


def _is_beside(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        StartProblem: the file cannot be read, or is not a JSON object.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StartProblem(f"cannot read `{path}`: {error}") from None
    if not isinstance(document, dict):
        raise StartProblem(f"`{path}` is not a JSON object")
    return document


def _refuse_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter.

    Raises:
        StartProblem: the folder has an adapter, with or without the adapted model.
    """
    if (folder / _ADAPTER).is_file():
        raise StartProblem(f"`{folder / _ADAPTER}`: the folder {_MERGE}")


def _not_a_model(folder: Path) -> StartProblem:
    """Return the error for a folder that has no `config.json`.

    Raises:
        ModelProblem: the folder has a sentence transformer's module that is not supported.
    """
    read_modules(lambda name: folder / name)
    for name, what in _FOREIGN.items():
        if (folder / name).is_file():
            return StartProblem(f"`{folder}` {what} (it has `{name}` but no `config.json`)")
    for pattern, what in _FOREIGN_PATTERNS.items():
        if found := sorted(folder.glob(pattern)):
            return StartProblem(f"`{folder}` {what} (it has `{found[0].name}`)")
    return StartProblem(f"`{folder}` has no `config.json`, so it is not a Hugging Face model")
