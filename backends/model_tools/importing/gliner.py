"""Converts a GLiNER checkpoint, which finds entities of the types that a request names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import yaml
from onnx import ModelProto
from tokenizers import Tokenizer

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.siglip import KINDS as SIGLIP
from sluicegate.backends.model_tools.graphs.spans import SPANS, SpanShape, build_spans
from sluicegate.backends.model_tools.graphs.weight_file import MOST_BYTES
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

FILE = "gliner_config.json"
_MARKERS = "markerV0"
_SAVE = (
    "load it with `GLiNER.from_pretrained(...)` and save it with "
    "`save_pretrained(FOLDER, safe_serialization=True)`"
)
# Labels of a request. The graph has a score for each of them, so more labels need more memory.
MOST_LABELS = 64
# Rows have room for texts with two tokens for each word.
_TOKENS_PER_WORD, _LEAST_TOKENS = 2, 512
# Parts of a GLiNER model that no graph is built for.
_NOT_BUILT: Mapping[str, str] = MappingProxyType(
    {
        "fuse_layers": "fuses the encoder's layers",
        "post_fusion_schema": "fuses labels and words",
        "span_encoder_config": "has an encoder of spans",
        "labels_encoder": "has an encoder of labels (a bi-encoder)",
        "labels_decoder": "generates labels",
        "relations_layer": "finds relations",
        "precomputed_prompts_mode": "has fixed labels",
    }
)
# In these encoders, a token does not read the tokens after it, so labels would not read the words.
# SigLIP has no output for tokens.
_ONE_WAY = ("qwen3", "gemma3_text", "clip_text_model", *SIGLIP)
_PARTS = ("token_rep_layer.", "rnn.lstm.", "span_rep_layer.span_rep_layer.", "prompt_rep_layer.")


_Size = Annotated[int, msgspec.Meta(ge=1, le=8192)]


class GlinerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the fields of `gliner_config.json` that decide results, with gliner's defaults."""

    class_token_index: int
    encoder_config: dict[str, Any]
    ent_token: str = "<<ENT>>"  # noqa: S105 - a token of a tokenizer
    sep_token: str = "<<SEP>>"  # noqa: S105 - a token of a tokenizer
    hidden_size: _Size = 512
    max_width: Annotated[int, msgspec.Meta(ge=1, le=128)] = 12
    max_len: _Size = 384
    num_rnn_layers: int = 1
    embed_ent_token: bool = True
    subtoken_pooling: str = "first"
    span_mode: str = _MARKERS
    words_splitter_type: str = "whitespace"


def read_gliner(path: Path, document: dict[str, Any]) -> GlinerConfig:
    """Return the configuration of a checkpoint; `document` is the content of the file `path`.

    Raises:
        StartProblem: the model has a part that is not supported.
    """
    if not isinstance(document.get("encoder_config"), dict):
        raise StartProblem(
            f"`{path}` of a GLiNER model has no `encoder_config`, which describes its encoder; "
            f"{_SAVE}"
        )
    for field, what in _NOT_BUILT.items():
        if document.get(field):
            raise StartProblem(f"`{path}`: `{field}` {what}, which is not supported for GLiNER")
    family = document["encoder_config"].get("model_type")
    if family in _ONE_WAY:
        raise StartProblem(
            f"`{path}`: the encoder is of the family `{family}`, which is not supported for GLiNER"
        )
    try:
        config = msgspec.convert(document, GlinerConfig)
    except msgspec.ValidationError as error:
        raise StartProblem(f"`{path}` of a GLiNER model: {error}") from None
    supported = {
        "span_mode": (_MARKERS,),
        "subtoken_pooling": ("first", "last"),
        "words_splitter_type": ("whitespace",),
    }
    check_values(path, "GLiNER", msgspec.structs.asdict(config), supported)
    return config


def check_values(
    path: Path, family: str, given: Mapping[str, Any], supported: Mapping[str, Sequence[str]]
) -> None:
    """Refuse a field of the file `path` whose value is not one of those that are supported.

    Raises:
        StartProblem: a value is not supported; the message names those that are.
    """
    for field, values in supported.items():
        if given[field] not in values:
            raise StartProblem(
                f"`{path}`: `{field}` is `{given[field]}`; {family} models with "
                f"{' or '.join(f'`{value}`' for value in values)} can be imported"
            )


def without_weights(folder: Path) -> StartProblem:
    """Return the error for a folder without safetensors."""
    pickle = next((path.name for path in sorted(folder.glob("pytorch_model*.bin"))), None)
    why = f"; `{pickle}` is a pickle, which runs code when it is read" if pickle else ""
    return StartProblem(f"`{folder}` is a GLiNER model without `model.safetensors`{why}: {_SAVE}")


def write_gliner(
    config: GlinerConfig,
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
    if tokenizer.token_to_id(config.ent_token) != config.class_token_index:
        raise StartProblem(
            f"`{FILE}` of a GLiNER model: `class_token_index` is {config.class_token_index}, but "
            f"the tokenizer has another id for `{config.ent_token}`; {_SAVE}"
        )
    check_weights(weights, _PARTS, "GLiNER")
    tokens = max_tokens(encoder, config.max_len)
    shape = SpanShape(
        hidden_size=config.hidden_size,
        max_width=config.max_width,
        max_labels=MOST_LABELS,
        num_rnn_layers=config.num_rnn_layers,
    )
    try:
        model = build_spans(with_positions(encoder, tokens), weights, shape)
    except WeightsError as error:
        raise StartProblem(f"no graph can be built for the GLiNER model: {error}") from None
    manifest = {
        "max_tokens": tokens,
        "max_words": config.max_len,
        "max_width": config.max_width,
        "label_token": config.ent_token,
        "text_token": config.sep_token,
        "label_place": "token" if config.embed_ent_token else "after",
        "word_place": config.subtoken_pooling,
    }
    write_span_model(model, manifest, target, fields)
    return f"GLiNER weights with a `{encoder.get('model_type')}` encoder"


def check_weights(weights: Weights, parts: tuple[str, ...], kind: str) -> None:
    """Refuse weights that are too large, or that begin with none of `parts`.

    Raises:
        StartProblem: the weights are refused.
    """
    unused = next((name for name in weights if not name.startswith(parts)), None)
    if unused is not None:
        raise StartProblem(f"no layer of a {kind} model has the weight `{unused}`")
    size = sum(tensor.nbytes for tensor in weights.values())
    if size > MOST_BYTES:
        raise StartProblem(
            f"the weights of the {kind} model have {size} bytes; at most {MOST_BYTES} are supported"
        )


def write_span_model(
    model: ModelProto, manifest: Mapping[str, Any], target: Path, fields: Mapping[str, Any]
) -> None:
    """Write `model.onnx`, and `model.yaml` with the fields of `manifest` and then of `fields`."""
    (target / "model.onnx").write_bytes(model.SerializeToString())
    document = {
        "kind": "spans",
        "graph": "model.onnx",
        "tokenizer": "tokenizer.json",
        "output": SPANS,
        "max_labels": MOST_LABELS,
        **manifest,
        **{name: value for name, value in fields.items() if name not in ("graph", "tokenizer")},
    }
    (target / "model.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _is_relative(encoder: Mapping[str, Any]) -> bool:
    """Return whether an encoder knows only distances between tokens, which may be any."""
    return encoder.get("model_type") == "deberta-v2" and not encoder.get("position_biased_input")


def max_tokens(encoder: Mapping[str, Any], words: int) -> int:
    """Return the most tokens of a row with `words` words, if the encoder reads as many."""
    wanted = max(_LEAST_TOKENS, _TOKENS_PER_WORD * words)
    known = encoder.get("max_position_embeddings")
    return min(wanted, known) if isinstance(known, int) and not _is_relative(encoder) else wanted


def with_positions(encoder: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """Return the configuration of an encoder for rows of `tokens` tokens."""
    if not _is_relative(encoder):
        return encoder
    farthest = int(encoder.get("max_relative_positions") or -1)
    if farthest < 1:
        farthest = int(encoder["max_position_embeddings"])
    return {**encoder, "max_position_embeddings": tokens, "max_relative_positions": farthest}
