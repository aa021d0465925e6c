"""Writes variants of the demo models, and models over them, that benchmarks serve."""

import json
import shutil
from pathlib import Path

import yaml

from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.heads import add_pooling
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.model_tools.graphs.weights import read_safetensors
from testing.model_repository import write_head, write_model

JUDGE, ZERO_SHOT = "bench-nli", "bench-zero-shot"
LABELS = ["music", "work", "family", "picture", "world", "life", "time", "people", "story", "fast"]


def copy_model(models: Path, name: str, copy: str, **changes: str) -> None:
    """Copy a model under another name, with changes of its manifest."""
    shutil.copytree(models / name, models / copy)
    for manifest in (models / copy).glob("*/model.yaml"):
        manifest.write_text(yaml.safe_dump(yaml.safe_load(manifest.read_bytes()) | changes))


def write_padded(path: Path) -> Path:
    """Write the demo encoder to `path` as common exporters do; return `path`.

    That graph also computes padding tokens.
    """
    source = find_source()
    shape = BertShape.from_config(json.loads((source / "config.json").read_bytes()))
    encoder = build_bert(shape, read_safetensors(source / "model.safetensors"))
    model = add_pooling(encoder, "mean", hidden=shape.hidden)
    path.write_bytes(model.SerializeToString())
    return path


def write_entailment(models: Path) -> None:
    """Write a classifier of pairs of texts, and a zero-shot classifier that uses it.

    The answers are useless, but take as much processor time as those of a real classifier.
    """
    labels = ["contradiction", "neutral", "entailment"]
    write_head(models, JUDGE, labels, dimensions=384, encoder="minilm")
    write_algorithm(models, ZERO_SHOT, "zero-shot-entailment", "zero-shot", uses=JUDGE)


def write_algorithm(
    models: Path, name: str, algorithm: str, task: str, *, uses: str, **options: str
) -> None:
    """Write an algorithm that calls another model."""
    manifest = {"kind": "algorithm", "algorithm": algorithm, "uses": [uses], "tasks": [task]}
    write_model(models, name, manifest | ({"options": options} if options else {}))
