"""Writes checkpoints and ONNX graphs of the demo's models in the usual formats of Python libraries.

This program runs in the virtual environment of the peer, and writes each folder only once.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from loadtests.peers.configuration import MODELS, PUBLISHED

_MODELING = Path(__file__).with_name("classifier.py")
_CLASS = "MeanForSequenceClassification"
_LABELS = ("negative", "positive")
_EXPORTED = {"embed": "feature-extraction", "classify": "text-classification"}


def checkpoint(task: str) -> Path:
    """Return the checkpoint of the encoder, or of the encoder with the head of `sentiment`."""
    models = Path(os.environ[MODELS])
    published = models / PUBLISHED
    if task == "embed":
        return published
    target = models / "sentiment-checkpoint"
    if target.exists():
        return target
    staging = Path(shutil.copytree(published, target.with_suffix(".part")))
    shutil.copy(_MODELING, staging)
    config = json.loads((staging / "config.json").read_bytes()) | {
        "architectures": [_CLASS],
        "auto_map": {"AutoModelForSequenceClassification": f"{_MODELING.stem}.{_CLASS}"},
        "id2label": dict(enumerate(_LABELS)),
        "label2id": {label: number for number, label in enumerate(_LABELS)},
    }
    (staging / "config.json").write_text(json.dumps(config))
    weights = {
        f"bert.{name}": values
        for name, values in load_file(published / "model.safetensors").items()
        if not name.startswith("pooler.") and not name.endswith("position_ids")
    }
    head = np.load(models / "sentiment" / "1" / "head.npz")
    weights["classifier.weight"] = np.ascontiguousarray(head["w0"].T, np.float32)
    weights["classifier.bias"] = head["b0"].astype(np.float32)
    save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
    return staging.rename(target)


def exported(task: str, *, pooled: bool = False) -> Path:
    """Return the folder of the ONNX graph; if `pooled`, the graph also computes the mean."""
    from optimum.exporters.onnx import main_export  # noqa: PLC0415 - not installed everywhere

    target = Path(os.environ[MODELS]) / f"{task}-exported{'-pooled' * pooled}"
    if not target.exists():
        staging = target.with_suffix(".part")
        main_export(
            str(checkpoint(task)),
            output=staging,
            task=_EXPORTED[task],
            library_name="sentence_transformers" if pooled else "transformers",
            trust_remote_code=True,
            do_validation=False,
        )
        staging.rename(target)
    return target
