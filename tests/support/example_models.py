"""Writes the models of the documentation's examples that the demo lacks, with random weights."""

import shutil
from pathlib import Path

import numpy as np

from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.heads import LOGITS, HeadShape, add_head
from sluicegate.backends.model_tools.graphs.options import GraphOptions
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from testing.bert import seeded_weights
from testing.model_repository import make_tokenizer, write_model
from tests.parity.library_fixtures import FIXTURES, OUTPUTS, unpack
from tests.parity.library_served import import_folder

_SHAPE = BertShape(layers=1, hidden=8, heads=2, intermediate=16, vocab=80, positions=512)


def write_example_models(models: Path, folder: Path) -> None:
    """Add `answers`, `gliner` and `splade` to a repository; `folder` is for what they are made of.

    All three take less than a second of processor time.
    """
    for name, packed, fixtures in (
        ("gliner", "gliner-00", FIXTURES),
        ("splade", "splade-bert", OUTPUTS),
    ):
        checkpoint = unpack(packed, folder, fixtures=fixtures)
        source = folder / name
        shutil.move(checkpoint, source)
        refused = import_folder(source, models)
        assert refused is None, refused
    write_answers(models)


def write_answers(models: Path, name: str = "answers") -> None:
    """Write a model that answers questions."""
    weights = dict(seeded_weights(_SHAPE, seed=2))
    random = np.random.default_rng(3)
    weights["qa.weight"] = random.standard_normal((2, _SHAPE.hidden), dtype=np.float32)
    weights["qa.bias"] = np.zeros(2, dtype=np.float32)
    encoder = build_bert(_SHAPE, weights, GraphOptions())
    graph = add_head(encoder, HeadShape(out="qa", reads="tokens"), weights)
    manifest = {
        "kind": "classifier",
        "graph": "model.onnx",
        "tokenizer": "tokenizer.json",
        "max_tokens": 384,
        "output": LOGITS,
        "labels": ["start", "end"],
        "tasks": ["answer"],
    }
    folder = write_model(models, name, manifest)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    make_tokenizer().save(str(folder / "tokenizer.json"))
