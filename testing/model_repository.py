"""Writes a small model repository for tests.

The tokenizer is real. The graph is a toy or, for executors that read no graph, an invalid file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sluicegate.backends.model_tools.graphs.shapes import BertShape
from testing.bert import pooled_bert, seeded_weights

DIMENSIONS = 8
WORDS = ("good", "bad", "film", "money", "card", "is", "the", "about", "this", "text", "paris")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MARKS = (".", ",", "!", "?")


def make_tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer that pads and truncates, as many published ones do."""
    pieces = [*_SPECIAL, *WORDS, *_MARKS, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    tokenizer = word_pieces(pieces)
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(6)
    return tokenizer


def word_pieces(pieces: Sequence[str]) -> Tokenizer:
    """Return a WordPiece tokenizer that lower-cases text and adds `[CLS]` and `[SEP]`."""
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return tokenizer


def id_of(piece: str) -> int:
    """Return the token id of a word piece."""
    number = make_tokenizer().token_to_id(piece)
    assert number is not None
    return number


def write_model(root: Path, name: str, manifest: dict[str, Any], revision: int = 1) -> Path:
    """Write a `model.yaml` and return its folder."""
    folder = root / name / str(revision)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return folder


def write_encoder(
    root: Path, name: str = "tiny", *, real: bool = False, revision: int = 1, **changes: Any
) -> Path:
    """Write an encoder.

    Without `real`, its graph is invalid, so no executor can read it.
    """
    manifest = {
        "kind": "encoder",
        "graph": "model.onnx",
        "tokenizer": "tokenizer.json",
        "max_tokens": 32,
        "dimensions": DIMENSIONS,
        "tasks": ["embed", "rerank"],
        "outputs": {"pooled": "pooled", "tokens": "tokens"},
    }
    folder = write_model(root, name, manifest | changes, revision)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "model.onnx").write_bytes(toy_graph() if real else b"no graph")
    return folder


def toy_graph() -> bytes:
    """Return a real BERT of toy size with seeded weights."""
    shape = BertShape(layers=1, hidden=DIMENSIONS, heads=2, intermediate=16, vocab=80, positions=64)
    content: bytes = pooled_bert(shape, seeded_weights(shape, seed=1)).SerializeToString()
    return content


def write_head(
    root: Path, name: str, labels: list[str], *, dimensions: int = DIMENSIONS, **changes: Any
) -> Path:
    """Write a head with seeded weights."""
    manifest = {
        "kind": "head",
        "encoder": "tiny",
        "task": "classify",
        "output": "pooled",
        "labels": labels,
        "weights": "head.npz",
    }
    folder = write_model(root, name, manifest | changes)
    random = np.random.default_rng(len(labels))
    weights = random.standard_normal((dimensions, len(labels))).astype(np.float16)
    np.savez(folder / "head.npz", w0=weights, b0=np.zeros(len(labels), dtype=np.float16))
    return folder


def write_repository(root: Path, *, real: bool = False) -> Path:
    """Write one model of every kind."""
    write_encoder(root, real=real)
    write_head(root, "mood", ["negative", "positive"])
    write_head(root, "intents", ["card", "money", "other"])
    labels = ["O", "B-PER", "I-PER"]
    write_head(root, "names", labels, task="entities", output="tokens")
    topics = {
        "kind": "algorithm",
        "algorithm": "zero-shot-embedding",
        "encoder": "tiny",
        "tasks": ["zero-shot", "choose"],
    }
    write_model(root, "topics", topics)
    reviewer = {
        "kind": "algorithm",
        "algorithm": "reviewer",
        "uses": ["mood", "topics", "intents"],
        "tasks": ["infer"],
    }
    write_model(root, "reviewer", reviewer)
    return root
