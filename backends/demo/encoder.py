"""Writes the demo encoder: published weights in, ONNX graph and plain tokenizer out."""

import json
import shutil
from pathlib import Path

from backends.demo.errors import DemoModelsError
from backends.graphs.bert import build_bert
from backends.graphs.form import GraphForm
from backends.graphs.shapes import BertShape
from backends.graphs.weights import WeightsError, read_safetensors


def write_encoder(source: Path, folder: Path) -> None:
    """Write `model.onnx`, `tokenizer.json` and `config.json` of the model in `source`.

    Raises:
        DemoModelsError: the files are not those of a BERT encoder.
    """
    try:
        shape = BertShape.from_config(json.loads((source / "config.json").read_bytes()))
        weights = read_safetensors(source / "model.safetensors")
        model = build_bert(shape, weights, GraphForm(attention="gathered"))
    except (WeightsError, ValueError, KeyError) as error:
        raise DemoModelsError(f"`{source}` holds no usable BERT model: {error}") from error
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    _write_tokenizer(source / "tokenizer.json", folder / "tokenizer.json")
    shutil.copyfile(source / "config.json", folder / "config.json")


def _write_tokenizer(source: Path, target: Path) -> None:
    # The published file pads and cuts every text to 128 tokens; `max_tokens` decides here.
    tokenizer = json.loads(source.read_bytes())
    tokenizer |= {"truncation": None, "padding": None}
    target.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
