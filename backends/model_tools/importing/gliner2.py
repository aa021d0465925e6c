"""Converts a GLiNER2 checkpoint: entities, relations and classes by the labels of a request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from tokenizers import Tokenizer

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.schema_spans import (
    CLASSES,
    COUNT,
    COUNTING,
    ENCODER,
    MOST_COUNT,
    MOST_RELATIONS,
    RELATIONS,
    SPAN,
    build_schema_spans,
)
from sluicegate.backends.model_tools.graphs.spans import SpanShape
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.model_tools.importing.gliner import (
    MOST_LABELS,
    check_values,
    check_weights,
    max_tokens,
    with_positions,
    write_span_model,
)

MODEL_TYPE = "extractor"
ENCODER_FILE = "encoder_config/config.json"
_ENTITY, _LABEL, _RELATION, _TEXT = "[E]", "[L]", "[R]", "[SEP_TEXT]"
_TOKENS = ("[P]", _ENTITY, _LABEL, _RELATION, _TEXT, "[SEP_STRUCT]")
_PARTS = (ENCODER, f"{SPAN}.", "classifier.", "count_pred.", f"{COUNT}.")
# Words of a window; `gliner2` itself reads long texts so.
_WORDS = 384
_WIDTH = 8
# The names of the two schemas, which the model reads. `gliner2` fixes the first one.
_ENTITIES, _CLASSES = "entities", "category"
_SAVE = "save it again with `model.save_pretrained(FOLDER)` of the package `gliner2`"

_Width = Annotated[int, msgspec.Meta(ge=1, le=128)]


class _SpanHead(msgspec.Struct, frozen=True, kw_only=True):
    max_width: _Width | None = None
    span_mode: str = "markerV0"


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the fields of `config.json` that decide results, with the defaults of `gliner2`."""

    architecture: str | None = None
    counting_layer: str | None = None
    token_pooling: str = "first"  # noqa: S105 - no password
    max_width: _Width | None = None
    span_head: _SpanHead | None = None


class Gliner2Config(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what decides results, apart from the weights."""

    encoder_config: dict[str, Any]
    counting_layer: str
    max_width: int


def read_gliner2(path: Path, document: Mapping[str, Any], encoder: dict[str, Any]) -> Gliner2Config:
    """Return the configuration of a checkpoint from the content of the file `path`.

    `encoder` is the configuration of its encoder.

    Raises:
        StartProblem: the model has a part that is not supported.
    """
    try:
        read = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise StartProblem(f"`{path}` of a GLiNER2 model: {error}") from None
    head = read.span_head or _SpanHead()
    counting = read.counting_layer or "count_lstm"
    given = {
        "architecture": read.architecture or "span",
        "token_pooling": read.token_pooling,
        "span_mode": head.span_mode,
        "counting_layer": counting,
    }
    supported = {
        "architecture": ("span",),
        "token_pooling": ("first",),
        "span_mode": ("markerV0",),
        "counting_layer": COUNTING,
    }
    check_values(path, "GLiNER2", given, supported)
    return Gliner2Config(
        encoder_config=encoder,
        counting_layer=counting,
        max_width=head.max_width or read.max_width or _WIDTH,
    )


def write_gliner2(
    config: Gliner2Config,
    encoder: Mapping[str, Any],
    weights: Weights,
    tokenizer: Tokenizer,
    target: Path,
    fields: Mapping[str, Any],
) -> str:
    """Write `model.onnx` and `model.yaml` to `target`; return the origin of the graph.

    `encoder` is the complete configuration of the encoder. `fields` override the fields of
    `model.yaml`.

    Raises:
        StartProblem: no graph can be built.
    """
    missing = next((token for token in _TOKENS if tokenizer.token_to_id(token) is None), None)
    if missing is not None:
        raise StartProblem(f"the tokenizer of a GLiNER2 model has no token `{missing}`; {_SAVE}")
    check_weights(weights, _PARTS, "GLiNER2")
    tokens = max_tokens(encoder, _WORDS)
    shape = SpanShape(
        hidden_size=int(encoder.get("hidden_size") or 0),
        max_width=config.max_width,
        max_labels=MOST_LABELS,
    )
    try:
        model = build_schema_spans(
            with_positions(encoder, tokens), weights, shape, config.counting_layer
        )
    except WeightsError as error:
        raise StartProblem(f"no graph can be built for the GLiNER2 model: {error}") from None
    manifest = {
        "max_tokens": tokens,
        "max_words": _WORDS,
        "max_width": shape.max_width,
        "label_token": _ENTITY,
        "text_token": _TEXT,
        "schema": _ENTITIES,
        "classes": {"output": CLASSES, "label_token": _LABEL, "schema": _CLASSES},
        "relations": {
            "output": RELATIONS,
            "label_token": _RELATION,
            "max_count": MOST_COUNT,
            "max_labels": MOST_RELATIONS,
        },
    }
    write_span_model(model, manifest, target, fields)
    return f"GLiNER2 weights with a `{encoder.get('model_type')}` encoder"
