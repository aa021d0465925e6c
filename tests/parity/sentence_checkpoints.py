"""Writes sentence transformers of one small encoder, each with other modules after it.

The encoder is the seeded BERT of the other checkpoints; matrices are seeded, too.
"""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from testing.weight_files import write_safetensors
from tests.parity.checkpoints import MAX_TOKENS, Checkpoint, write_checkpoint
from tests.parity.fewer_families import HIDDEN
from tests.parity.texts import read_texts

_WIDE, _NARROW = 24, 12
_ACTIVATION = "torch.nn.modules.activation."
_IDENTITY = "torch.nn.modules.linear.Identity"
Config = dict[str, Any]


class SentenceCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Describes modules: how tokens are pooled, and kinds with their configurations after that."""

    name: str
    pooling: Config = msgspec.field(default_factory=lambda: {"pooling_mode": "mean"})
    after: tuple[tuple[str, Config], ...] = ()
    limits: Config = {}
    prompts: Config = {}


def _dense(inputs: int, outputs: int, activation: str, *, bias: bool = True) -> tuple[str, Config]:
    sizes = {"in_features": inputs, "out_features": outputs, "bias": bias}
    return "Dense", {**sizes, "activation_function": activation}


_NORMALIZE: tuple[str, Config] = ("Normalize", {})
_PROMPT = {
    "prompts": {"query": "Look for: ", "document": "Text: "},
    "default_prompt_name": "query",
}
CHECKPOINTS = (
    *(
        SentenceCheckpoint(name=f"pooling: {mode}", pooling={"pooling_mode": mode})
        for mode in ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    ),
    SentenceCheckpoint(
        name="pooling: cls, max and mean joined, by flags",
        pooling={
            "word_embedding_dimension": HIDDEN,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": True,
        },
    ),
    SentenceCheckpoint(name="`Normalize`", after=(_NORMALIZE,)),
    SentenceCheckpoint(
        name="`Dense` (Tanh), `Normalize`",
        after=(_dense(HIDDEN, _NARROW, f"{_ACTIVATION}Tanh"), _NORMALIZE),
    ),
    SentenceCheckpoint(
        name="`Dense` (GELU), `Dense` (no bias), `LayerNorm`",
        pooling={"pooling_mode": ["mean", "lasttoken"]},
        after=(
            _dense(2 * HIDDEN, _WIDE, f"{_ACTIVATION}GELU"),
            _dense(_WIDE, _NARROW, _IDENTITY, bias=False),
            ("LayerNorm", {"dimension": _NARROW}),
        ),
    ),
    SentenceCheckpoint(
        name="`Dropout`, `Dense` (ReLU), `Dense` (Sigmoid), `Dense` (SiLU)",
        after=(
            ("Dropout", {"dropout": 0.5}),
            _dense(HIDDEN, _WIDE, f"{_ACTIVATION}ReLU"),
            _dense(_WIDE, _WIDE, f"{_ACTIVATION}Sigmoid"),
            _dense(_WIDE, _NARROW, f"{_ACTIVATION}SiLU"),
        ),
    ),
    SentenceCheckpoint(name="`default_prompt_name`", prompts=_PROMPT),
    *(
        SentenceCheckpoint(
            name=f"`include_prompt: false`, {mode}",
            pooling={"pooling_mode": mode, "include_prompt": False},
            prompts=_PROMPT,
        )
        for mode in ("mean", "cls", "max", "weightedmean", "lasttoken")
    ),
    SentenceCheckpoint(name="`do_lower_case`", limits={"do_lower_case": True}),
    SentenceCheckpoint(
        name="`max_seq_length` below the tokenizer's", limits={"max_seq_length": 12}
    ),
)


# Ranks documents by prompts of their own for the query and for them.
RANKED = next(each for each in CHECKPOINTS if each.prompts)
# A cross-encoder whose scores are its logits.
CROSS = Checkpoint(family="bert", purpose="cross")
RERANK, CROSS_RERANK = "`prompts`, ranking", "`activation_fn`: `Identity`"
_EVERY = 10


def sentence_texts() -> list[str]:
    """Return some of the texts: what is told apart here does not need all."""
    return read_texts()[::_EVERY]


def write_cross_encoder(folder: Path) -> Path:
    """Write the folder of the cross-encoder and return it."""
    write_checkpoint(CROSS, folder)
    config = json.loads((folder / "config.json").read_bytes())
    config["sentence_transformers"] = {"activation_fn": _IDENTITY, "version": "6.2.0"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def folder_name(checkpoint: SentenceCheckpoint) -> str:
    """Return a name for its folder and its model."""
    return f"sentence-{CHECKPOINTS.index(checkpoint)}"


def write_sentence_checkpoint(checkpoint: SentenceCheckpoint, folder: Path) -> Path:
    """Write the folder of a checkpoint and return it."""
    write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)
    kinds = [("Transformer", {}), ("Pooling", checkpoint.pooling), *checkpoint.after]
    listed = []
    for place, (kind, config) in enumerate(kinds):
        path = f"{place}_{kind}" if place else ""
        listed.append(
            {
                "idx": place,
                "name": str(place),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
        )
        if place:
            _write_module(folder / path, kind, config)
    (folder / "modules.json").write_text(json.dumps(listed))
    limits = {"max_seq_length": MAX_TOKENS, "do_lower_case": False, **checkpoint.limits}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    if checkpoint.limits.get("do_lower_case"):
        _keep_case(folder / "tokenizer.json")
    if checkpoint.prompts:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(checkpoint.prompts))
    return folder


def _write_module(folder: Path, kind: str, config: Config) -> None:
    folder.mkdir(exist_ok=True)
    if kind == "Pooling" and "word_embedding_dimension" not in config:
        config = {"embedding_dimension": HIDDEN, **config}
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {}
    if kind == "Dense":
        shapes["linear.weight"] = (config["out_features"], config["in_features"])
        if config["bias"]:
            shapes["linear.bias"] = (config["out_features"],)
    elif kind == "LayerNorm":
        shapes = dict.fromkeys(("norm.weight", "norm.bias"), (config["dimension"],))
    if shapes:
        weights = {name: _seeded(f"{folder.name} {name}", shape) for name, shape in shapes.items()}
        write_safetensors(folder / "model.safetensors", weights)


def _seeded(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers between -0.5 and 0.5, made of the raw output of PCG64, which never changes."""
    raw = np.random.PCG64([*name.encode()]).random_raw(math.prod(shape))
    return ((raw >> np.uint64(40)).astype(np.float32) / np.float32(2**24) - 0.5).reshape(shape)


def _keep_case(path: Path) -> None:
    """Have a tokenizer leave upper case as it is."""
    tokenizer = json.loads(path.read_bytes())
    tokenizer["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(tokenizer))
    config = path.with_name("tokenizer_config.json")
    fields = json.loads(config.read_bytes()) | {"do_lower_case": False}
    config.write_text(json.dumps(fields))
