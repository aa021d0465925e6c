"""Writes the ONNX graphs and the tokenizer of a demo encoder from its published weights."""

import json
from pathlib import Path

from onnx import ModelProto

from sluicegate.backends.model_tools.demo.source import DemoModelsError
from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.weights import WeightsError, read_safetensors
from sluicegate.backends.model_tools.importing.device_graphs import write_device_graphs


def write_encoder(source: Path, folder: Path, *, layers: int | None = None) -> None:
    """Write the graphs, `tokenizer.json` and `config.json` of the model in `source`.

    The graphs keep the first `layers` layers, by default all.

    Raises:
        DemoModelsError: the files are not the files of a BERT encoder.
    """
    try:
        config = json.loads((source / "config.json").read_bytes())
        if layers is not None:
            config["num_hidden_layers"] = min(layers, config["num_hidden_layers"])
        weights = read_safetensors(source / "model.safetensors")
        model = build_checkpoint(config, weights)
    except (WeightsError, ValueError, KeyError) as error:
        raise DemoModelsError(f"`{source}` has no usable BERT model: {error}") from error
    graph = folder / "model.onnx"
    graph.write_bytes(model.SerializeToString())
    write_device_graphs(graph, config, weights, "mean", finish=_leave)
    _write_tokenizer(source / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _leave(_: ModelProto) -> None:
    """Append no steps after the encoder."""


def _write_tokenizer(source: Path, target: Path) -> None:
    # The published file pads and truncates every text to 128 tokens. This is removed, because the
    # length is decided by `max_tokens` in the manifest.
    tokenizer = json.loads(source.read_bytes())
    tokenizer |= {"truncation": None, "padding": None}
    target.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
