"""Writes a classifier as a Hugging Face folder, and imports it as `models import` does."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np

from backends.model_tools.graphs.shapes import BertShape
from backends.model_tools.graphs.weights import seeded_weights
from backends.model_tools.importing.work import import_model
from backends.qualification.forms import RECORD
from backends.settings import BackendSettings
from loadtests.gpu.models import write_tokenizer
from loadtests.gpu.plan import Options
from testing.weight_files import write_safetensors

_LABELS = ("negative", "positive")


def import_classifier(options: Options, preset: str) -> Path:
    """Return a repository with the classifier `bench` of a size, in the precision of the device.

    It has every form that an import writes: the backend that loads it takes the quickest.
    """
    precision = options.precision()
    root = options.work / f"models-{preset}-{precision}"
    revision = root / "bench" / "1"
    if not revision.exists():
        folder = options.work / "checkpoint"
        _write_checkpoint(folder, options.shape(preset))
        settings = BackendSettings(models=root)
        import_model(
            folder, settings, name="bench", given={}, variant=None, dry_run=False, echo=print
        )
        shutil.rmtree(folder)
        # No gate decides: with weights of no meaning all scores are nearly equal.
        (revision / "model.yaml").write_text(f"profile: {precision}\n")
    return root


def chosen_form(root: Path) -> str:
    """Return which of its forms a backend chose, and what it predicted of the others."""
    record = root / "bench" / "1" / RECORD
    if not record.exists():
        return "the form for CPUs"
    found = msgspec.json.decode(record.read_bytes())
    return json.dumps(found)


def _write_checkpoint(folder: Path, shape: BertShape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2)
    weights = {f"bert.{name}": values for name, values in seeded_weights(shape, seed=1).items()}
    for name, rows in (("bert.pooler.dense", shape.hidden), ("classifier", len(_LABELS))):
        weights[f"{name}.weight"] = random.standard_normal((rows, shape.hidden)).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(rows, dtype=np.float32)
    write_safetensors(folder / "model.safetensors", weights)
    write_tokenizer(folder / "tokenizer.json", shape.vocab)
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": shape.token_types,
        "pad_token_id": 0,
        "id2label": dict(enumerate(_LABELS)),
    }
    (folder / "config.json").write_text(json.dumps(config))
    generic = {"tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(generic))
