"""Writes small seeded checkpoints of eight families as `save_pretrained` does.

Their random numbers are the raw output of PCG64, which never changes, so that references recorded
once stay right. Heads are scaled until logits over the texts spread: near zero any model is right.
MiniLM-L6-v2 has its published weights, with seeded heads on top.
"""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.graphs.shapes import BertShape, weight_shapes
from sluicegate.backends.model_tools.graphs.weights import read_safetensors
from tests.parity import fewer_families
from tests.parity.fewer_families import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    VOCABULARY,
    Shapes,
    linear,
)
from tests.parity.texts import DATA

Family = Literal[
    "bert",
    "distilbert",
    "roberta",
    "deberta",
    "mpnet",
    "electra",
    "albert",
    "modernbert",
    "xlm-roberta",
    "minilm",
]
Purpose = Literal["text", "many", "tokens", "choice", "cross", "embed", "embed-cls", "answer"]
FAMILIES: tuple[Family, ...] = ("bert", "distilbert", "roberta", "deberta")
# Of these each head is asked once, about fewer texts.
FEWER_FAMILIES: tuple[Family, ...] = ("mpnet", "electra", "albert", "modernbert", "xlm-roberta")
FEWER_PURPOSES: tuple[Purpose, ...] = ("text", "tokens", "choice", "embed", "answer")
_FEWER_TEXTS = 100
PURPOSES: tuple[Purpose, ...] = (
    "text",
    "many",
    "tokens",
    "choice",
    "cross",
    "embed",
    "embed-cls",
    "answer",
)
MINILM_PURPOSES: tuple[Purpose, ...] = ("text", "tokens", "answer")
MAX_TOKENS = 64
_WHOLE = 256
_BUCKETS = 16
_SPREAD = 0.25
_OUT = ("classifier.out_proj", "classifier", "qa_outputs")
HEADS_FILE = DATA / "heads.json"
_SEEDS = {f: seed for seed, f in enumerate((*FAMILIES, "minilm", *FEWER_FAMILIES), start=11)}
_TOKENIZERS = {
    "bert": "wordpiece",
    "distilbert": "wordpiece",
    "roberta": "bpe",
    "deberta": "unigram",
    "mpnet": "bpe",
    "electra": "wordpiece",
    "albert": "unigram",
    "modernbert": "wordpiece",
    "xlm-roberta": "bpe",
}
_ARCHITECTURES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "roberta": "Roberta",
    "deberta": "DebertaV2",
    "mpnet": "MPNet",
    "electra": "Electra",
    "albert": "Albert",
    "modernbert": "ModernBert",
    "xlm-roberta": "XLMRoberta",
}
_PREFIXES = {"modernbert": "model.", "xlm-roberta": "roberta."}
_HEADS_OF = {
    "tokens": "ForTokenClassification",
    "choice": "ForMultipleChoice",
    "answer": "ForQuestionAnswering",
}
_LABELS = {
    "text": ["contradiction", "neutral", "entailment"],
    "many": ["angry", "happy", "tired", "calm"],
    "tokens": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"],
    "choice": ["LABEL_0"],
    "cross": ["LABEL_0"],
    "answer": ["start", "end"],
}


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A family with a head for a purpose; `embed` ones have none."""

    family: Family
    purpose: Purpose

    @property
    def name(self) -> str:
        """The name of its folder and of its model."""
        return f"{self.family}-{self.purpose}"

    @property
    def max_tokens(self) -> int:
        """What it has positions for: texts are cut, but those whose tokens are asked for fit."""
        return _WHOLE if self.purpose == "tokens" else MAX_TOKENS

    def choose(self, texts: list[str]) -> list[str]:
        """Return those of the texts that it is asked about."""
        return texts[:_FEWER_TEXTS] if self.family in FEWER_FAMILIES else texts

    @property
    def labels(self) -> list[str]:
        """What its logits stand for."""
        return _LABELS.get(self.purpose, [])


def all_checkpoints() -> Iterator[Checkpoint]:
    """Yield every family with every head, and MiniLM with some."""
    for family in FAMILIES:
        for purpose in PURPOSES:
            yield Checkpoint(family=family, purpose=purpose)
    for family in FEWER_FAMILIES:
        for purpose in FEWER_PURPOSES:
            yield Checkpoint(family=family, purpose=purpose)
    for purpose in MINILM_PURPOSES:
        yield Checkpoint(family="minilm", purpose=purpose)


def write_checkpoint(checkpoint: Checkpoint, folder: Path, *, raw: bool = False) -> Path:
    """Write the folder of a checkpoint and return it; a `raw` one has its head as it was seeded."""
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.family == "minilm":
        weights, tokenizer = _minilm_weights(checkpoint), find_source() / "tokenizer.json"
    else:
        shapes = _encoder_shapes(checkpoint) | _head_shapes(checkpoint)
        weights = _weights(checkpoint, shapes)
        tokenizer = DATA / f"{_TOKENIZERS[checkpoint.family]}-tokenizer.json"
    if checkpoint.labels and not raw:
        _adjust_head(checkpoint, weights)
    _write_safetensors(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(_config(checkpoint), indent=1))
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(checkpoint)))
    if not checkpoint.labels:
        write_sentence_files(folder, "cls" if checkpoint.purpose == "embed-cls" else "mean")
    return folder


def write_sentence_files(folder: Path, pooling: str) -> None:
    """Write what makes a sentence transformer of a model's folder."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {
            "idx": place,
            "name": str(place),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path, _ in modules[1:]:
        (folder / path).mkdir(exist_ok=True)
    limits = {"max_seq_length": MAX_TOKENS, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    modes = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    settings: dict[str, Any] = {name: mode == pooling for mode, name in modes.items()}
    settings["word_embedding_dimension"] = HIDDEN
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def _minilm_weights(checkpoint: Checkpoint) -> dict[str, NDArray[np.float32]]:
    """Return the published weights, as under a head, and a seeded head."""
    published = read_safetensors(find_source() / "model.safetensors")
    hidden = published["embeddings.word_embeddings.weight"].shape[1]
    out = "qa_outputs" if checkpoint.purpose == "answer" else "classifier"
    head = linear(out, len(checkpoint.labels), hidden)
    encoder = {f"bert.{name}": np.asarray(tensor) for name, tensor in published.items()}
    return encoder | _weights(checkpoint, head)


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    kind = _ARCHITECTURES.get(checkpoint.family, "Bert")
    labels = checkpoint.labels
    head = _HEADS_OF.get(checkpoint.purpose, "ForSequenceClassification") if labels else "Model"
    config: dict[str, Any] = {**_sizes(checkpoint), "architectures": [f"{kind}{head}"]}
    if labels:
        config["id2label"] = {str(place): label for place, label in enumerate(labels)}
        config["label2id"] = {label: place for place, label in enumerate(labels)}
    if checkpoint.purpose == "many":
        config["problem_type"] = "multi_label_classification"
    return config


def _sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    family, positions = checkpoint.family, checkpoint.max_tokens
    if family == "minilm":
        published: dict[str, Any] = json.loads((find_source() / "config.json").read_bytes())
        return published
    if family in FEWER_FAMILIES:
        return fewer_families.config(family, checkpoint.purpose, positions)
    common = {"vocab_size": VOCABULARY, "pad_token_id": 0}
    bert = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "hidden_act": "gelu",
        "max_position_embeddings": positions,
        "layer_norm_eps": 1e-12,
    }
    if family == "bert":
        return {"model_type": "bert", **common, **bert, "type_vocab_size": 2}
    if family == "distilbert":
        return {
            "model_type": "distilbert",
            **common,
            "dim": HIDDEN,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": INTERMEDIATE,
            "activation": "gelu",
            "max_position_embeddings": positions,
        }
    if family == "roberta":
        # Its padding is token 1, and its positions begin after that.
        changed = {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
        changed["max_position_embeddings"] = positions + 2
        return {"model_type": "roberta", **common, **bert, **changed}
    return {
        "model_type": "deberta-v2",
        **common,
        **bert,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "position_buckets": _BUCKETS,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "pooler_hidden_act": "gelu",
        "pooler_hidden_size": HIDDEN,
    }


def _tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    names = ["input_ids", "attention_mask"]
    if checkpoint.family in {"bert", "electra", "albert", "minilm"}:
        names.insert(1, "token_type_ids")
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    if checkpoint.family in {"roberta", "mpnet", "xlm-roberta"}:
        special = {
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "cls_token": "<s>",
            "sep_token": "</s>",
            "mask_token": "<mask>",
        }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.max_tokens,
        "model_input_names": names,
        **special,
    }


def _encoder_shapes(checkpoint: Checkpoint) -> Shapes:
    family = checkpoint.family
    prefix = _PREFIXES.get(family, f"{family}.") if checkpoint.labels else ""
    if family in FEWER_FAMILIES:
        shapes = fewer_families.encoder_shapes(family, checkpoint.purpose, checkpoint.max_tokens)
        return {f"{prefix}{name}": size for name, size in shapes.items()}
    if family == "deberta":
        return {f"{prefix}{name}": size for name, size in _deberta_shapes().items()}
    shape = BertShape(
        layers=LAYERS,
        hidden=HIDDEN,
        heads=HEADS,
        intermediate=INTERMEDIATE,
        vocab=VOCABULARY,
        positions=checkpoint.max_tokens + (2 if family == "roberta" else 0),
        token_types=1 if family == "roberta" else 2,
    )
    shapes = weight_shapes(shape)
    if family == "distilbert":
        shapes = {_distil_name(n): s for n, s in shapes.items() if "token_type" not in n}
    elif checkpoint.purpose in {"choice", "embed", "embed-cls"} or (
        family == "bert" and checkpoint.purpose not in {"tokens", "answer"}
    ):
        shapes |= linear("pooler.dense", HIDDEN, HIDDEN)
    return {f"{prefix}{name}": size for name, size in shapes.items()}


def _distil_name(name: str) -> str:
    for bert, distil in (
        ("encoder.layer.", "transformer.layer."),
        (".attention.self.query.", ".attention.q_lin."),
        (".attention.self.key.", ".attention.k_lin."),
        (".attention.self.value.", ".attention.v_lin."),
        (".attention.output.dense.", ".attention.out_lin."),
        (".attention.output.LayerNorm.", ".sa_layer_norm."),
        (".intermediate.dense.", ".ffn.lin1."),
        (".output.dense.", ".ffn.lin2."),
        (".output.LayerNorm.", ".output_layer_norm."),
    ):
        name = name.replace(bert, distil)
    return name


def _deberta_shapes() -> Shapes:
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, HIDDEN),
        "encoder.rel_embeddings.weight": (2 * _BUCKETS, HIDDEN),
    }
    norms = ["embeddings.LayerNorm", "encoder.LayerNorm"]
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        for name in ("query_proj", "key_proj", "value_proj"):
            shapes |= linear(f"{prefix}.attention.self.{name}", HIDDEN, HIDDEN)
        shapes |= linear(f"{prefix}.attention.output.dense", HIDDEN, HIDDEN)
        shapes |= linear(f"{prefix}.intermediate.dense", INTERMEDIATE, HIDDEN)
        shapes |= linear(f"{prefix}.output.dense", HIDDEN, INTERMEDIATE)
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    for name in norms:
        shapes |= {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}
    return shapes


def _head_shapes(checkpoint: Checkpoint) -> Shapes:
    labels, family = len(checkpoint.labels), checkpoint.family
    if not labels:
        return {}
    if family in FEWER_FAMILIES:
        return fewer_families.head_shapes(family, checkpoint.purpose, labels)
    if checkpoint.purpose == "answer":
        return linear("qa_outputs", labels, HIDDEN)
    if checkpoint.purpose == "tokens":
        return linear("classifier", labels, HIDDEN)
    if family == "roberta" and checkpoint.purpose != "choice":
        dense = linear("classifier.dense", HIDDEN, HIDDEN)
        return dense | linear("classifier.out_proj", labels, HIDDEN)
    before = {
        "distilbert": linear("pre_classifier", HIDDEN, HIDDEN),
        "deberta": linear("pooler.dense", HIDDEN, HIDDEN),
    }.get(family, {})
    return before | linear("classifier", labels, HIDDEN)


def _weights(checkpoint: Checkpoint, shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return the weights: those of the encoder are the same under every head."""
    seed = _SEEDS[checkpoint.family]
    weights: dict[str, NDArray[np.float32]] = {}
    for name, size in shapes.items():
        family = checkpoint.family
        own = name.removeprefix("model.").removeprefix(_PREFIXES.get(family, f"{family}."))
        raw = np.random.PCG64([seed, *own.encode()]).random_raw(math.prod(size))
        noise = (raw >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
        spread = np.float32(math.sqrt(3) * _SPREAD)
        centre = np.float32(1.0 if "norm.weight" in name.lower() else 0.0)
        weights[name] = (centre + spread * noise).reshape(size)
    return weights


def _adjust_head(checkpoint: Checkpoint, weights: dict[str, NDArray[np.float32]]) -> None:
    found = json.loads(HEADS_FILE.read_bytes())[checkpoint.name]
    scale = np.array(found["scale"], dtype=np.float32)
    out = next(name for name in _OUT if f"{name}.weight" in weights)
    weights[f"{out}.weight"] = weights[f"{out}.weight"] * scale[:, None]
    centre = np.array(found["centre"], dtype=np.float32)
    weights[f"{out}.bias"] = weights[f"{out}.bias"] * scale + centre


def _write_safetensors(path: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in weights.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join(tensor.tobytes() for tensor in weights.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
