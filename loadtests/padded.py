"""Writes the demo encoder as common exporters do: as a graph that also computes padding tokens."""

import json
from pathlib import Path

from backends.model_tools.demo.source import find_source
from backends.model_tools.graphs.bert import build_bert
from backends.model_tools.graphs.shapes import BertShape
from backends.model_tools.graphs.weights import read_safetensors


def write_padded(path: Path) -> Path:
    """Write the graph to `path`, and return `path`."""
    source = find_source()
    shape = BertShape.from_config(json.loads((source / "config.json").read_bytes()))
    model = build_bert(shape, read_safetensors(source / "model.safetensors"))
    path.write_bytes(model.SerializeToString())
    return path
