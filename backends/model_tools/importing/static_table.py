"""Reads the folder of a static model: of `model2vec`, or with the module `StaticEmbedding`.

The rules are those of `model2vec` 0.10 (MIT) and `sentence_transformers` 6.2 (Apache-2.0).
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.static import StaticTable
from sluicegate.backends.model_tools.graphs.weights import WeightsError, read_tensors
from sluicegate.backends.repository.sentence_modules import NormalizeModule, SentenceModules

_WEIGHTS, _TOKENIZER, _CONFIG = "model.safetensors", "tokenizer.json", "config.json"
_VECTORS, _OF_MODULE = "embeddings", "embedding.weight"
# The limit of `model2vec` if the configuration has none.
_MAX_TOKENS = 512
# A row needs memory for the vectors of all its tokens, so texts without a limit get this one.
_NO_LIMIT = 8192
_MATRIX = 2
# A look-up is so quick that a batch of the default size costs more than its rows.
_BATCH_ROWS = 64


class StaticModel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a static model: its table, its `tokenizer.json`, and the fields of its manifest."""

    table: StaticTable
    tokenizer: str
    modules: SentenceModules
    fields: dict[str, Any]


def is_static(folder: Path, config: Mapping[str, Any], modules: SentenceModules | None) -> bool:
    """Return whether a folder has a static model."""
    if modules is not None:
        return modules.table is not None
    if config.get("model_type") is not None or not (folder / _WEIGHTS).is_file():
        return config.get("model_type") == "model2vec"
    try:
        return _VECTORS in read_tensors(folder / _WEIGHTS)[0]
    except WeightsError:
        return False


def read_static(
    folder: Path, config: Mapping[str, Any], modules: SentenceModules | None
) -> StaticModel:
    """Read a static model.

    Raises:
        StartProblem: a file is missing or cannot be read, or the table does not fit the tokenizer.
    """
    own = folder / (modules.table or "" if modules is not None else "")
    if not (own / _WEIGHTS).is_file():
        pickle = "pytorch_model.bin"
        found = f"; `{pickle}` is a pickle, which runs code" if (own / pickle).is_file() else ""
        raise StartProblem(f"`{own / _WEIGHTS}` is missing{found}; save the model as safetensors")
    try:
        tensors, _ = read_tensors(own / _WEIGHTS)
    except WeightsError as error:
        raise StartProblem(str(error)) from None
    source, tokenizer = _open_tokenizer(own / _TOKENIZER)
    if _VECTORS in tensors:
        return _model2vec(own, config, modules, tensors, source, tokenizer)
    if _OF_MODULE not in tensors:
        raise StartProblem(
            f"`{own / _WEIGHTS}` has neither `{_VECTORS}` nor `{_OF_MODULE}`, so it is no static "
            "model; save it with model2vec or sentence-transformers"
        )
    table = StaticTable(vectors=tensors[_OF_MODULE])
    _check(own, table, tokenizer)
    return StaticModel(
        table=table,
        tokenizer=_without_template(source),
        modules=modules or SentenceModules(),
        fields={"max_batch_rows": _BATCH_ROWS, **_module_limits(own, tokenizer)},
    )


def _model2vec(
    folder: Path,
    config: Mapping[str, Any],
    modules: SentenceModules | None,
    tensors: Mapping[str, NDArray[Any]],
    source: str,
    tokenizer: Tokenizer,
) -> StaticModel:
    later = modules.after if modules is not None else ()
    if any(not isinstance(module, NormalizeModule) for module in later):
        raise StartProblem(
            f"`{folder}`: `modules.json` has layers after a table of `model2vec`, which ignores "
            "them; load and save the folder with sentence-transformers"
        )
    table = StaticTable(
        vectors=tensors[_VECTORS],
        mapping=tensors.get("mapping"),
        weights=tensors.get("weights"),
        unknown=_unknown(source, tokenizer),
    )
    _check(folder, table, tokenizer)
    after = (NormalizeModule(),) if config.get("normalize") else ()
    return StaticModel(
        table=table,
        tokenizer=_without_template(source),
        modules=SentenceModules(table="", after=after),
        fields={"max_batch_rows": _BATCH_ROWS, **_model2vec_limits(folder, config, tokenizer)},
    )


def _model2vec_limits(
    folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the limits of a text: `model2vec` cuts its characters, and then its tokens."""
    tokens = config.get("max_length", _MAX_TOKENS)
    if tokens is None:
        return {"max_tokens": _NO_LIMIT}
    if not isinstance(tokens, int) or tokens < 1:
        raise StartProblem(
            f"`{folder / _CONFIG}`: `max_length` must be a number of tokens, not `{tokens}`"
        )
    median = int(statistics.median(map(len, tokenizer.get_vocab())))
    return {"max_tokens": tokens, "truncate": True, "max_characters": max(1, tokens * median)}


def _module_limits(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the limits of a text, which `StaticEmbedding` takes from its `tokenizer.json`."""
    truncation = tokenizer.truncation
    if truncation is None:
        return {"max_tokens": _NO_LIMIT}
    if truncation.get("direction", "right") != "right":
        raise StartProblem(
            f"`{folder / _TOKENIZER}` truncates texts at their beginning, which is not supported"
        )
    return {"max_tokens": truncation["max_length"], "truncate": True}


def _open_tokenizer(path: Path) -> tuple[str, Tokenizer]:
    try:
        source = path.read_text(encoding="utf-8")
        return source, Tokenizer.from_str(source)
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exceptions
        raise StartProblem(f"`{path}`: cannot be read as a tokenizer: {error}") from None


def _without_template(source: str) -> str:
    """Return a `tokenizer.json` that adds no special tokens, as static models tokenize."""
    return json.dumps(json.loads(source) | {"post_processor": None}, ensure_ascii=False)


def _unknown(source: str, tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token; for a unigram model, only the file contains it."""
    token: str | None = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        return tokenizer.token_to_id(token)
    number: int | None = json.loads(source)["model"].get("unk_id")
    return number


def _check(folder: Path, table: StaticTable, tokenizer: Tokenizer) -> None:
    path = folder / _WEIGHTS
    token, number = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    of_tokens = {"mapping": table.mapping, "weights": table.weights}
    if table.mapping is None:
        of_tokens[_VECTORS] = table.vectors
    elif table.mapping.size and not 0 <= table.mapping.min() <= table.mapping.max() < len(
        table.vectors
    ):
        raise StartProblem(f"`{path}`: `mapping` names a row that `{_VECTORS}` does not have")
    for name, tensor in of_tokens.items():
        if tensor is not None and len(tensor) <= number:
            raise StartProblem(
                f"`{path}`: `{name}` has {len(tensor)} rows, but the token `{token}` of "
                f"`{_TOKENIZER}` has the id {number}; save the table and the tokenizer together"
            )
    if table.vectors.ndim != _MATRIX:
        raise StartProblem(f"`{path}`: `{_VECTORS}` must be a matrix, not {table.vectors.shape}")
    for name, tensor in {_VECTORS: table.vectors, "weights": table.weights}.items():
        if tensor is not None and not np.isfinite(tensor).all():
            raise StartProblem(f"`{path}`: `{name}` has a NaN or an infinity; distill it again")
