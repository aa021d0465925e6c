"""Reads a Hugging Face folder for an import, and refuses content that an import cannot use."""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import numpy as np
import yaml
from typing_extensions import override

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.adapters import (
    CHOICES,
    STACKED,
    Factors,
    merge_factors,
    read_task_adapters,
    stack_factors,
)
from sluicegate.backends.model_tools.graphs.checkpoint import FAMILIES, weight_prefix
from sluicegate.backends.model_tools.graphs.heads import WORDS
from sluicegate.backends.model_tools.graphs.siglip import FILLER, KINDS as SIGLIP
from sluicegate.backends.model_tools.graphs.static import StaticTable
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError, read_safetensors
from sluicegate.backends.model_tools.importing.adapter import (
    CONFIG as ADAPTER,
    Adapter,
    read_adapter,
)
from sluicegate.backends.model_tools.importing.class_tokenizer import (
    ClassTokenizer,
    build_tokenizer,
)
from sluicegate.backends.model_tools.importing.gliner import (
    FILE as GLINER,
    GlinerConfig,
    read_gliner,
    without_weights,
)
from sluicegate.backends.model_tools.importing.gliner2 import (
    ENCODER_FILE,
    MODEL_TYPE as GLINER2,
    Gliner2Config,
    read_gliner2,
)
from sluicegate.backends.model_tools.importing.ranking import (
    TEMPLATE_FILE,
    Ranking,
    find_ranking,
)
from sluicegate.backends.model_tools.importing.setfit_head import LinearHead, read_setfit_head
from sluicegate.backends.model_tools.importing.static_table import is_static, read_static
from sluicegate.backends.repository.config_defaults import complete_config, padding_position
from sluicegate.backends.repository.sentence_modules import (
    FILE as MODULES,
    SentenceModules,
    read_modules,
    read_object,
)
from sluicegate.backends.repository.tokenizer_files import CONFIG as TOKENIZER_CONFIG
from sluicegate.backends.types import Pooling

_GRAPHS = ("model.onnx", "onnx/model.onnx")
WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
# The heads of BGE-M3 for sparse vectors and for token vectors.
SPARSE_HEAD, COLBERT_HEAD = "sparse_linear.safetensors", "colbert_linear.safetensors"
_MANIFEST = "model.yaml"
# The loader takes seconds for a number of this many bytes.
_MOST_YAML = 256 << 10
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SLOW = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_SAVE_TOKENIZER = (
    "save the tokenizer with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`"
)
# Classes that `transformers` has for SentencePiece only, which saves no `tokenizer.json`.
_ONLY_SLOW = {
    "SiglipTokenizer": "write it with `transformers`: `T5Tokenizer.from_pretrained(FOLDER, "
    'extra_ids=0).backend_tokenizer.save("tokenizer.json")`; the import applies the rules of '
    "`SiglipTokenizer` to its vocabulary"
}
_POINTER = b"version https://git-lfs"
_HEADED = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
_BARE = ("Model", "ForMaskedLM", "ForPreTraining", "ForCausalLM", "ModelWithProjection")
# Settings of `config.json` that Sluicegate's own graphs do not support.
_NOT_BUILT = {
    "quantization_config": "says that the weights are quantized, which is not supported",
    "pruned_heads": "removes attention heads, which is not supported",
}
# The names of the classes in custom code that Sluicegate computes itself begin so, by model type.
_KNOWN_CODE = {
    "eurobert": "EuroBert",
    "new": "New",
    "gte": "Gte",
    "nomic_bert": "NomicBert",
    "jina_embeddings_v3": "XLMRoberta",
}
# Classes in `modules.json` whose code only chooses an adapter.
_KNOWN_MODULES = {"jina_embeddings_v3": {"custom_st.Transformer"}}
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers")
_ADAPTED = re.compile(r"\.lora_|\.base_layer\.|(?:^|\.)adapters?\.")
_BASES = {
    *("bert", "distilbert", "roberta", "mpnet", "electra", "albert", "deberta", "model"),
    *("new", "gte", "nomic_bert", "text_model"),
}
# The modules of the supported families. Those from `cls` on are used only in training.
_PARTS = {
    *("embeddings", "embeddings_project", "encoder", "transformer", "layers", "final_norm"),
    *("embed_tokens", "norm", "score"),
    *("pooler", "head", "pre_classifier", "classifier", "sequence_summary", "qa_outputs"),
    *("cls", "lm_head", "predictions", "sop_classifier", "lm_predictions", "mask_predictions"),
    *("vocab_transform", "vocab_layer_norm", "vocab_projector", "decoder"),
    *("discriminator_predictions", "generator_predictions", "generator_lm_head"),
}
# The modules that only some families have.
_OWN_PARTS = {
    "eurobert": {"embed_tokens", "norm", "dense"},
    "nomic_bert": {"emb_ln"},
    "jina_embeddings_v3": {"emb_ln"},
    "t5": {"shared"},
    "clip_text_model": {"final_layer_norm", "text_projection"},
    **{kind: {"final_layer_norm"} for kind in SIGLIP},
}
_EMBEDDINGS = (
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_tokens.weight",
    "shared.weight",
    "token_embedding.weight",
)
_HEAD = re.compile(r"(classifier|pre_classifier|score|qa_outputs|logits_proj)\.")
# What a folder without `config.json` has instead.
_ONNX = "if it needs only token ids, export it to ONNX and import that"
_FOREIGN: Mapping[str, str] = MappingProxyType(
    {
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

    `modules` are the modules of a sentence transformer. `ranking` says how a decoder ranks.
    `fields` are manifest fields from a `model.yaml` in the folder, or from options of the command.
    `tokenizer` is the tokenizer that the folder's tokenizer class builds. If `gliner` is set,
    `config` is that of its encoder. `table` has the vectors of a static model. `head` is a head of
    SetFit. `adapter` is merged into the weights of `folder`, which is then the base model.
    `task_adapter` names an adapter inside of the weights to merge into them. Without it, requests
    choose one of them. `adapters` are adapters of this base model among which requests choose.
    """

    folder: Path
    config: dict[str, Any]
    graph: Path | None
    modules: SentenceModules | None = None
    ranking: Ranking | None = None
    fields: dict[str, Any] = {}
    tokenizer: ClassTokenizer
    task_adapter: str | None = None
    gliner: GlinerConfig | Gliner2Config | None = None
    table: StaticTable | None = None
    head: LinearHead | None = None
    adapter: Adapter | None = None
    adapters: Mapping[str, Adapter] = MappingProxyType({})

    def adapter_names(self, weights: Weights) -> list[str]:
        """Return the names of the adapters among which requests choose; `weights` are stacked."""
        if CHOICES not in weights:
            return []
        return list(self.adapters) or [str(name) for name in self.config["lora_adaptations"]]

    def find(self, name: str) -> Path:
        """Return the path of a file, which may be in the adapter's folder or not exist."""
        own = self.adapter and self.adapter.folder / name
        return own if own and own.is_file() else self.folder / name

    def weights(self) -> Weights:
        """Return the weights, from one file or several.

        Raises:
            StartProblem: there are no weights, they cannot be read, or `config.json` has a setting
                that is not supported.
        """
        refused = {name: what for name, what in _NOT_BUILT.items() if self.config.get(name)}
        if not self._has_known_code():
            refused["auto_map"] = "names custom code, which is not run"
        for field, what in refused.items():
            raise StartProblem(
                f"`{self.folder / 'config.json'}`: `{field}` {what}; export the model to ONNX and "
                "import that"
            )
        weights = self._adapt(self._read_weights())
        if self.gliner is None:
            self._check_names(weights)
        self._check_embeddings(weights)
        for name, tensor in weights.items():
            if not np.isfinite(tensor).all():
                raise StartProblem(
                    f"`{self.folder}`: the weight `{name}` has a NaN or an infinity; train the "
                    "model again, or use an earlier checkpoint"
                )
        return weights

    def _adapt(self, weights: Weights) -> Weights:
        """Return the weights with one adapter merged into them, or with several beside them."""
        prefix, own, found = weight_prefix(self.config), weights, list[Factors]()
        if self.adapter is None:
            try:
                own, found = read_task_adapters(weights, self.config, self.task_adapter)
            except WeightsError as error:
                raise StartProblem(f"`{self.folder}`: {error}") from None
        if (unknown := next(filter(_ADAPTED.search, own), None)) is not None:
            raise StartProblem(
                f"`{self.folder}`: `{unknown}` belongs to an adapter, which is not supported; "
                "merge it with `merge_and_unload()` and save the model"
            )
        if self.adapter is not None:
            return self.adapter.merge(own, prefix)
        if self.task_adapter is not None:
            return merge_factors(own, found[0]) if found else own
        for adapter in self.adapters.values():
            adapter.check_shared(own, prefix)
            found.append(adapter.factors(own, prefix))
        return stack_factors(own, found) if found else own

    def unchanged(self, weights: Weights) -> Weights:
        """Return those of the `weights` that the merged adapter leaves as they are."""
        if self.adapter is None:
            return {}
        changed = self.adapter.changed(weights, weight_prefix(self.config))
        return {name: tensor for name, tensor in weights.items() if name not in changed}

    def module_weights(self, folder: str) -> Weights:
        """Return the weights of a sentence transformer's module.

        Raises:
            StartProblem: there are no weights, or they cannot be read.
        """
        path = self.find(f"{folder}/{WEIGHTS}")
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
        if not index.is_file() and self.gliner is not None:
            raise without_weights(self.folder)
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
            if not (self.folder / shard).is_file():
                raise StartProblem(
                    f"`{self.folder / shard}`: No such file; copy it, because `{index}` names it"
                )
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

    def _has_known_code(self) -> bool:
        """Whether `config.json` names no code but that of classes which Sluicegate computes."""
        start = _KNOWN_CODE.get(str(self.config.get("model_type")))
        named = (self.config.get("auto_map") or {}).values()
        return all(start and str(each).rpartition(".")[2].startswith(start) for each in named)

    def _check_names(self, weights: Weights) -> None:
        """Refuse weights that a model with this `config.json` would not use."""
        layers = next(
            (self.config[n] for n in _LAYERS if isinstance(self.config.get(n), int)), None
        )
        names = self.config.get("architectures") or ["Model"]
        # A class that is not the first one may explain a head, which the first one ignores.
        is_bare = all(str(name).endswith(_BARE) for name in names)
        kind = str(self.config.get("model_type"))
        for name in weights:
            found = _LAYER.search(name)
            if found and layers is not None and int(found[1]) >= layers:
                raise StartProblem(
                    f"`{self.folder / 'config.json'}` says {layers} layers, but the weights have "
                    f"`{name}`; correct the number of layers"
                )
            if name.endswith(STACKED):
                continue
            if kind in FAMILIES and _part(name) not in {*_PARTS, *_OWN_PARTS.get(kind, ())}:
                raise StartProblem(
                    f"`{self.folder}`: no layer of a `{kind}` has the weight "
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


def open_source(
    folder: Path,
    given: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
    adapters: Mapping[str, Path] = MappingProxyType({}),
    ignored: Collection[str] = (),
) -> CheckpointFolder:
    """Return the content of a folder; fields in `given` override fields of its `model.yaml`.

    `base` is the folder of an adapter's base model. `adapters` are folders of adapters of this
    model, by the names with which requests choose one. Heads of SetFit in `ignored` are left out.

    Raises:
        StartProblem: the folder has no model; the message says what is missing.
    """
    if not folder.is_dir():
        raise StartProblem(f"`{folder}` is not a folder; name the model's folder")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise StartProblem(f"this user may not read the folder `{folder}`; change its permissions")
    fields = {**_read_fields(folder / _MANIFEST), **(given or {})}
    adapter = read_adapter(folder)
    if adapter is not None:
        if adapters or "adapter" in fields:
            raise StartProblem(
                f"`{folder}` is an adapter already, so it takes no `--adapter`; leave it out"
            )
        return _open_adapted(adapter, fields, base)
    if base is not None:
        raise StartProblem(f"`--base` is only for adapters, but `{folder}` has no `{ADAPTER}`")
    source = _open_static(folder, fields) or _open_checkpoint(folder, fields)
    if adapters:
        return _open_choices(source, adapters)
    if source.gliner is not None:
        return source
    return msgspec.structs.replace(source, head=read_setfit_head(folder, ignored))


def _open_adapted(adapter: Adapter, fields: dict[str, Any], base: Path | None) -> CheckpointFolder:
    """Return the base model of an adapter, with the adapter's tokenizer and modules, if any."""
    if base is None:
        named = adapter.config.get("base_model_name_or_path")
        raise StartProblem(
            f"`{adapter.folder}` is an adapter of `{named}`; name the folder of that model with "
            "`--base PATH`"
        )
    if not base.is_dir():
        raise StartProblem(f"`--base {base}` is not a folder; name the base model's folder")
    if (base / ADAPTER).is_file():
        raise StartProblem(f"`--base {base}` is an adapter, too; name the model under it")
    own = adapter.folder
    has_tokenizer = (own / "tokenizer.json").is_file() and "tokenizer" not in fields
    source = _open_checkpoint(base, fields, tokenizer_folder=own if has_tokenizer else base)
    config, listed = adapter.complete(source.config), own if (own / MODULES).is_file() else base
    is_headed = str(config["architectures"][0]).endswith(_HEADED)
    if source.ranking is not None:
        _check_ranking(own, base, source.ranking, is_headed=is_headed)
    return msgspec.structs.replace(
        source,
        config=config,
        graph=None,
        modules=None if is_headed else _modules(listed, config),
        adapter=adapter,
    )


def _open_choices(source: CheckpointFolder, folders: Mapping[str, Path]) -> CheckpointFolder:
    """Return a base model with the adapters among which requests choose."""
    own = "lora_adaptations" if source.task_adapter is None else "adapter"
    if source.task_adapter is not None or source.config.get(own):
        raise StartProblem(
            f"`--adapter {next(iter(folders))}=PATH`: `{source.folder}` has adapters of its own "
            f"(`{own}`), to which no others can be added; leave `--adapter NAME=PATH` out"
        )
    found = {}
    for name, folder in folders.items():
        adapter = read_adapter(folder)
        if adapter is None:
            raise StartProblem(f"`--adapter {name}={folder}`: the folder has no `{ADAPTER}`")
        if reason := _not_shared(source, adapter):
            raise StartProblem(
                f"`--adapter {name}={folder}`: {reason}; import it as a model of its own with "
                f"`--base {source.folder}`"
            )
        found[name] = adapter
    return msgspec.structs.replace(source, graph=None, adapters=found)


def _not_shared(source: CheckpointFolder, adapter: Adapter) -> str | None:
    """Return why an adapter cannot share a graph with its base model; `None` if it can."""
    folder, config = adapter.folder, source.config
    headed = [str(adapter.complete(config)["architectures"][0]), *config.get("architectures", [])]
    if source.table is not None or source.gliner is not None or source.ranking is not None:
        return "only a model that embeds texts can choose among adapters"
    if any(name.endswith(_HEADED) for name in headed[:2]):
        return "a model with a head cannot choose among adapters"
    if (folder / MODULES).is_file() and _modules(folder, config) != source.modules:
        return f"its `{MODULES}` differs from that of the base model"
    if (folder / "tokenizer.json").is_file():
        own = build_tokenizer(folder, "tokenizer.json", config).load().to_str()
        if own != source.tokenizer.load().to_str():
            return "its tokenizer differs from that of the base model"
    return None


def _check_ranking(own: Path, base: Path, ranking: Ranking, *, is_headed: bool) -> None:
    """Refuse an adapter that ranks in another way than its base model."""
    if is_headed and ranking.words:
        raise StartProblem(
            f"`{own / ADAPTER}`: the adapter has a head, but `{base}` ranks by words; name the "
            "base model without `modules.json` and without `tasks`"
        )
    template = own / TEMPLATE_FILE
    if template.is_file():
        other = base / TEMPLATE_FILE
        if not other.is_file() or template.read_bytes() != other.read_bytes():
            raise StartProblem(
                f"`{template}` differs from the chat template of `{base}`; copy the base model, "
                "and replace its template by this one"
            )


def _open_checkpoint(
    folder: Path, fields: dict[str, Any], *, tokenizer_folder: Path | None = None
) -> CheckpointFolder:
    task_adapter = fields.pop("adapter", None)
    tokenizer = (tokenizer_folder or folder) / str(fields.get("tokenizer", "tokenizer.json"))
    gliner = _read_gliner(folder)
    if gliner is None and not (folder / "config.json").is_file():
        raise _not_a_model(folder)
    if not tokenizer.is_file():
        slow = next((f" (it has `{name}`)" for name in _SLOW if (folder / name).is_file()), "")
        kind = read_object(folder / TOKENIZER_CONFIG).get("tokenizer_class")
        remedy = _ONLY_SLOW.get(str(kind), _SAVE_TOKENIZER)
        raise StartProblem(f"`{folder}` has no `{tokenizer.name}`{slow}; {remedy}")
    check_content(tokenizer)
    config = complete_config(
        read_json(folder / "config.json") if gliner is None else gliner.encoder_config
    )
    built = build_tokenizer(tokenizer.parent, tokenizer.name, config)
    if config.get("model_type") in SIGLIP:
        _check_filling(tokenizer.parent / TOKENIZER_CONFIG)
        config |= {FILLER: built.padding}
    ranking = find_ranking(folder, config, fields, built)
    if ranking is not None:
        config |= {WORDS: ranking.words} if ranking.words else {}
        fields = ranking.complete(fields)
    source = CheckpointFolder(
        folder=folder,
        config=config,
        ranking=ranking,
        # Adapters are added to weights.
        graph=(
            _find_graph(folder, fields.get("graph"))
            if gliner is None and task_adapter is None and not config.get("lora_adaptations")
            else None
        ),
        modules=_modules(folder, config),
        fields=fields,
        task_adapter=None if task_adapter is None else str(task_adapter),
        tokenizer=built,
        gliner=gliner,
    )
    names = source.config.get("architectures") or [""]
    if source.modules is not None and str(names[0]).endswith(_HEADED):
        raise StartProblem(
            f"`{folder / MODULES}` pools token vectors, but `config.json` names the head "
            f"`{names[0]}`; remove the file, or name the encoder's class in `architectures`"
        )
    return source


def _read_gliner(folder: Path) -> GlinerConfig | Gliner2Config | None:
    """Return the configuration of a model that reads labels; `None` for other folders."""
    if (folder / GLINER).is_file():
        return read_gliner(folder / GLINER, read_json(folder / GLINER))
    path = folder / "config.json"
    document = read_json(path) if path.is_file() else {}
    if document.get("model_type") != GLINER2:
        return None
    return read_gliner2(path, document, read_json(folder / ENCODER_FILE))


def _check_filling(path: Path) -> None:
    """Refuse a tokenizer of SigLIP that fills rows in another way than in the model's training."""
    fields = read_object(path)
    for field, right in (("model_input_names", ["input_ids"]), ("padding_side", "right")):
        found = fields.get(field, right if field == "padding_side" else None)
        if found != right:
            raise StartProblem(
                f"`{path}`: `{field}` is {json.dumps(found)}; SigLIP reads rows that are filled on "
                f"the right with real tokens; set it to {json.dumps(right)}"
            )


def _open_static(folder: Path, fields: dict[str, Any]) -> CheckpointFolder | None:
    """Return the content of a folder with a static model; `None` for other folders."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    modules = _modules(folder, complete_config(config))
    if not is_static(folder, config, modules):
        return None
    model = read_static(folder, config, modules)
    return CheckpointFolder(
        folder=folder,
        config=config,
        graph=None,
        modules=model.modules,
        fields=model.fields | fields,
        tokenizer=ClassTokenizer(text=model.tokenizer, config=None, types=False),
        table=model.table,
    )


def _modules(folder: Path, config: Mapping[str, Any]) -> SentenceModules | None:
    known = _KNOWN_MODULES.get(str(config.get("model_type")), ())
    return read_modules(lambda name: folder / name, known)


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases, because a few lines of them can stand for a document of any size."""

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (`*name`); write the value in its place")
        return super().compose_node(parent, index)


def _read_yaml(path: Path) -> Any:
    if path.stat().st_size > _MOST_YAML:
        raise yaml.YAMLError(f"it is larger than {_MOST_YAML} bytes")
    return yaml.load(path.read_bytes(), _PlainLoader)  # noqa: S506 - it is a safe loader


def _read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a `model.yaml` in a checkpoint's folder, if there is one."""
    try:
        fields = _read_yaml(path) if path.is_file() else {}
    except Exception as error:  # noqa: BLE001 - the loader raises many types, and the file is foreign
        reason = " ".join(str(error).split())
        raise StartProblem(f"cannot read `{path}` as YAML: {reason}") from None
    if not isinstance(fields or {}, dict):
        raise StartProblem(f"`{path}` must map fields to values")
    for name in ("graph", "tokenizer"):
        named = Path(str((fields or {}).get(name, name)))
        if named.is_absolute() or ".." in named.parts:
            raise StartProblem(f"`{path}`: `{name}` must be a file in the folder, not `{named}`")
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
    except (OSError, ValueError, RecursionError) as error:
        raise StartProblem(f"cannot read `{path}`: {error}") from None
    if not isinstance(document, dict):
        raise StartProblem(f"`{path}` is not a JSON object")
    return document


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
    if not any(folder.iterdir()):
        return StartProblem(f"`{folder}` is empty; copy the checkpoint's files into it")
    return StartProblem(f"`{folder}` has no `config.json`, so it is not a Hugging Face model")
