"""Exports checkpoints to ONNX as torch does: `python -m tests.parity.export_graphs`.

Runs where torch is installed, with `onnxscript` beside it, which torch's newer exporter needs.
"""

import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
from transformers import AutoModelForSequenceClassification

from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.parity.texts import DATA

# Of TorchScript's exporter, one family for each way to number positions; one of `torch.export`.
EXPORTS = {
    "bert": DATA / "bert-text-torchscript.onnx",
    "roberta": DATA / "roberta-text-torchscript.onnx",
    "modernbert": DATA / "modernbert-text-dynamo.onnx",
}


def main() -> None:
    """Write the graphs that tests rebuild."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_checkpoint(Checkpoint(family="bert", purpose="text"), Path(folder, "bert"))
        given = _inputs("input_ids", "attention_mask", "token_type_ids")
        dynamic = {name: {0: "batch", 1: "sequence"} for name in given}
        _export(source, EXPORTS["bert"], given, dynamo=False, dynamic_axes=dynamic)
        source = write_checkpoint(Checkpoint(family="roberta", purpose="text"), Path(folder, "r"))
        given = _inputs("input_ids", "attention_mask")
        dynamic = {name: {0: "batch", 1: "sequence"} for name in given}
        _export(source, EXPORTS["roberta"], given, dynamo=False, dynamic_axes=dynamic)
        checkpoint = Checkpoint(family="modernbert", purpose="text")
        source = write_checkpoint(checkpoint, Path(folder, "modernbert"))
        given = _inputs("input_ids", "attention_mask")
        varying: Any = torch.export.Dim.DYNAMIC
        shapes = {name: {0: varying, 1: varying} for name in given}
        options = {"dynamic_shapes": shapes, "external_data": False}
        _export(source, EXPORTS["modernbert"], given, dynamo=True, **options)
    _drop_traces(EXPORTS["modernbert"])


def _inputs(*names: str) -> dict[str, Any]:
    return {name: torch.ones((2, 9), dtype=torch.long) for name in names}


def _export(source: Path, target: Path, given: dict[str, Any], **options: Any) -> None:
    kind: Any = AutoModelForSequenceClassification
    model = kind.from_pretrained(source, attn_implementation="eager").eval()
    model.config.return_dict = options["dynamo"]
    names: dict[str, Any] = {"input_names": list(given), "output_names": ["logits"]}
    torch.onnx.export(model, (), str(target), kwargs=given, **names, **options)


def _drop_traces(path: Path) -> None:
    """Drop what the exporter says of its own working, with the paths of this machine in it."""
    model = onnx.load(str(path))
    for node in model.graph.node:
        kept = [each for each in node.metadata_props if each.key.endswith("name_scopes")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    del model.graph.value_info[:]
    path.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
