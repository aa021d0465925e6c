"""Completes imported graphs with sparse vectors and token vectors, and describes them.

`model.yaml` then has the fields `sparse` and `multi_vector`.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from onnx import ModelProto

from sluicegate.backends.errors import ModelProblem, StartProblem
from sluicegate.backends.model_tools.importing.output_graph import (
    JOINED,
    VECTORS,
    add_joined,
    add_projection,
    add_splade,
    add_splade_pooling,
)
from sluicegate.backends.model_tools.importing.sentence_graph import POOLED, width_of
from sluicegate.backends.model_tools.importing.source import (
    COLBERT_HEAD,
    SPARSE_HEAD,
    CheckpointFolder,
)
from sluicegate.backends.repository.manifest import MultiVectorOutput, SparseOutput
from sluicegate.backends.repository.sentence_modules import SentenceModules, read_object
from sluicegate.backends.repository.sentence_settings import LIMIT_FILES, PROMPT_FILE
from sluicegate.backends.repository.tokenizer_files import CONFIG as TOKENIZER_CONFIG

_TOKENS = ("tokens", "last_hidden_state", "token_embeddings")
_LOGITS = "logits"
# The defaults of PyLate (MIT).
_QUERY_LENGTH, _DOCUMENT_LENGTH = 32, 180
_MASK = "mask_token"
_SPECIAL = ("cls_token", "bos_token", "eos_token", "sep_token", "pad_token", "unk_token")


def add_outputs(model: ModelProto, source: CheckpointFolder, fields: dict[str, Any]) -> bool:
    """Append the outputs that the folder describes, and complete the manifest's `fields`.

    Return whether there are any.

    Raises:
        StartProblem: the graph or the folder lacks something that an output needs.
    """
    try:
        modules = source.modules
        if modules is not None and modules.splade is not None:
            _add_splade(model, source, modules, fields)
        elif modules is not None and modules.late is not None:
            _add_projection(model, source, modules, fields)
        elif source.heads:
            _add_heads(model, source, fields)
        else:
            return False
    except ModelProblem as error:
        raise StartProblem(f"`{source.folder}`: {error}") from None
    return True


def late_interaction(source: CheckpointFolder) -> MultiVectorOutput | None:
    """Return how a folder for late interaction marks texts; `None` for other folders.

    Raises:
        StartProblem: a prefix is not a token, or a setting is not supported.
    """
    modules, path = source.modules, source.folder / PROMPT_FILE
    if modules is None or modules.late is None:
        return None
    config, tokens = read_object(path), source.tokenizer.load().get_vocab()
    native = modules.late.skipped is not None
    settings = _native_settings(source, config) if native else config
    words = modules.late.skipped if native else config.get("skiplist_words")
    query_length = settings.get("query_length")
    document_length = settings.get("document_length")
    if not native:
        query_length = query_length or _QUERY_LENGTH
        document_length = document_length or _DOCUMENT_LENGTH
    expands = settings.get("do_query_expansion") is not False
    hidden = int(source.config.get("hidden_size") or source.config.get("dim") or 0)
    return MultiVectorOutput(
        dimensions=modules.projection[-1].outputs if modules.projection else hidden,
        query_prefix=_prefix(path, settings, "query_prefix", tokens),
        document_prefix=_prefix(path, settings, "document_prefix", tokens),
        query_length=query_length,
        document_length=document_length,
        expansion=_special(source, settings.get("expansion_token"), tokens) if expands else None,
        attends_to_expansion=bool(settings.get("attend_to_expansion_tokens")),
        skipped=sorted(
            tokens[word]
            for word in (string.punctuation if words is None else words)
            if word in tokens
        ),
    )


def _native_settings(source: CheckpointFolder, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a `MultiVectorEncoder`, by their names in PyLate."""
    limits = read_object(source.folder / LIMIT_FILES[0])
    expansion, prompts = limits.get("query_expansion"), config.get("prompts") or {}
    if expansion is not None and expansion.get("strategy") != "fixed":
        raise StartProblem(
            f"`{source.folder / LIMIT_FILES[0]}`: `query_expansion` must have the strategy `fixed`"
        )
    found = {
        "query_prefix": prompts.get("query"),
        "document_prefix": prompts.get("document"),
        "query_length": limits.get("query_length"),
        "document_length": limits.get("document_length"),
        "do_query_expansion": expansion is not None,
    }
    if expansion is not None:
        found["query_length"] = expansion["length"]
        found["attend_to_expansion_tokens"] = expansion.get("attend")
        found["expansion_token"] = expansion.get("token")
    return found


def reads_unattended(source: CheckpointFolder) -> bool:
    """Return whether rows have tokens that no token attends to, which need a plain graph."""
    vectors = late_interaction(source)
    return (
        vectors is not None and vectors.expansion is not None and not vectors.attends_to_expansion
    )


def _add_splade(
    model: ModelProto, source: CheckpointFolder, modules: SentenceModules, fields: dict[str, Any]
) -> None:
    module, outputs = modules.splade, {value.name for value in model.graph.output}
    if module is None:
        return
    if _LOGITS in outputs:
        width = width_of(model, _LOGITS) or int(source.config.get("vocab_size", 0))
        add_splade_pooling(model, module, logits=_LOGITS)
    else:
        tokens, weights = _tokens(model, source), source.weights()
        width = add_splade(model, module, weights, source.config, tokens=tokens)
    _set(fields, {"pooled": POOLED}, width, sparse=SparseOutput(vocabulary=width))
    fields.setdefault("tasks", ["embed", "rerank"])


def _add_projection(
    model: ModelProto, source: CheckpointFolder, modules: SentenceModules, fields: dict[str, Any]
) -> None:
    vectors = late_interaction(source)
    if vectors is None:
        return
    layers = [(each, source.module_weights(each.folder)) for each in modules.projection]
    width = modules.projection[0].inputs if modules.projection else vectors.dimensions
    add_projection(model, layers, tokens=_tokens(model, source), width=width)
    _set(fields, {"tokens": VECTORS}, vectors.dimensions, multi_vector=vectors)
    if vectors.document_length is not None:
        # The limits of a checkpoint for late interaction may be those of its last query.
        longest = max(vectors.query_length or 0, vectors.document_length)
        fields.setdefault("max_tokens", min(longest, source.positions() or longest))
    fields.setdefault("prompts", {})  # they are tokens now
    fields.setdefault("truncate", True)
    fields.setdefault("tasks", ["embed", "rerank"])


def _add_heads(model: ModelProto, source: CheckpointFolder, fields: dict[str, Any]) -> None:
    tokens = _tokens(model, source)
    named = {value.name for value in model.graph.output}
    pooled = next((n for n in (POOLED, "sentence_embedding") if n in named), None)
    if pooled is None:
        raise ModelProblem("the graph has no pooled output; add `modules.json` with a pooling")
    vectors, sparse = (source.head_weights(name) for name in (COLBERT_HEAD, SPARSE_HEAD))
    add_joined(model, tokens=tokens, pooled=pooled, vectors=vectors, sparse=sparse)
    width = width_of(model, pooled) or int(source.config["hidden_size"])
    found: dict[str, Any] = {}
    if sparse is not None:
        found["sparse"] = SparseOutput(skipped=_special_tokens(source))
    if vectors is not None:
        found["multi_vector"] = MultiVectorOutput(
            dimensions=int(vectors["weight"].shape[0]), leading=1
        )
    _set(fields, {"pooled": pooled, "joined": JOINED}, width, **found)


def _set(fields: dict[str, Any], outputs: Mapping[str, str], width: int, **found: Any) -> None:
    fields["outputs"], fields["dimensions"] = dict(outputs), width
    for name, value in found.items():
        written = msgspec.to_builtins(value)
        fields.setdefault(name, {k: v for k, v in written.items() if v not in (None, [], 0, False)})


def _tokens(model: ModelProto, source: CheckpointFolder) -> str:
    outputs = {value.name for value in model.graph.output}
    named = source.fields.get("outputs") or {}
    found = next((name for name in (named.get("tokens"), *_TOKENS) if name in outputs), None)
    if found is None:
        raise ModelProblem(
            f"none of the graph's outputs {', '.join(sorted(outputs))} is known to be the token "
            "vectors; name it with `--output tokens=NAME`"
        )
    return str(found)


def _prefix(
    path: Path, config: Mapping[str, Any], field: str, tokens: Mapping[str, int]
) -> int | None:
    text = config.get(field)
    if not text:
        return None
    found = tokens.get(text, tokens.get(str(text).strip()))
    if found is None:
        raise StartProblem(f"`{path}`: `{field}` is `{text}`, which is no token; add it as a token")
    return found


def _special(source: CheckpointFolder, token: str | None, tokens: Mapping[str, int]) -> int:
    """Return the token with which queries are filled, the mask token by default."""
    found = tokens.get(token or _special_texts(source).get(_MASK, ""))
    if found is None:
        raise StartProblem(
            f"`{source.folder / TOKENIZER_CONFIG}` names no `{_MASK}`, which fills queries"
        )
    return found


def _special_tokens(source: CheckpointFolder) -> list[int]:
    tokens, texts = source.tokenizer.load().get_vocab(), _special_texts(source)
    return sorted({tokens[texts[name]] for name in _SPECIAL if texts.get(name) in tokens})


def _special_texts(source: CheckpointFolder) -> dict[str, str]:
    found = {}
    for name, value in read_object(source.folder / TOKENIZER_CONFIG).items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found
