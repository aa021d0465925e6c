"""Changes good checkpoint folders into odd ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from sluicegate.backends.model_tools.graphs.weights import read_safetensors
from testing.weight_files import Tensors, write_safetensors

Change = Callable[[Path], None]
WEIGHTS, GRAPH = "model.safetensors", "model.onnx"


def write_shards(folder: Path, tensors: Tensors) -> None:
    """Write tensors to two files, and the index that names them."""
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: files[at % 2] for at, name in enumerate(sorted(tensors))}
    for file in files:
        own = {name: tensors[name] for name in tensors if places[name] == file}
        write_safetensors(folder / file, own)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def edit(name: str, **fields: Any) -> Change:
    """Change fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        found = json.loads(path.read_bytes()) if path.exists() else {}
        path.write_text(json.dumps(found | fields))

    return change


def remove(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def rename(old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        (folder / old).rename(folder / new)

    return change


def write(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def halve(name: str) -> Change:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def all_of(*changes: Change) -> Change:
    def change_all(folder: Path) -> None:
        for change in changes:
            change(folder)

    return change_all


def tensors(folder: Path) -> dict[str, Any]:
    """Return the weights, to be changed."""
    return {name: np.array(t) for name, t in read_safetensors(folder / WEIGHTS).items()}


def weights(dtype: str = "F32", *, without: str = "none", **added: Any) -> Change:
    """Write the weights again, in other numbers, without some, or with others."""

    def change(folder: Path) -> None:
        kept = {n: t for n, t in tensors(folder).items() if not n.startswith(without)}
        more = {name.replace("__", "."): np.asarray(tensor) for name, tensor in added.items()}
        write_safetensors(folder / WEIGHTS, kept | more, dtype=dtype)

    return change


def broken_number(value: float) -> Change:
    def change(folder: Path) -> None:
        found = tensors(folder)
        found["bert.encoder.layer.1.output.dense.bias"][3] = value
        write_safetensors(folder / WEIGHTS, found)

    return change


def sharded(folder: Path) -> None:
    write_shards(folder, tensors(folder))
    (folder / WEIGHTS).unlink()


def fewer_shards(folder: Path) -> None:
    sharded(folder)
    shard = folder / "model-00002-of-00002.safetensors"
    kept = dict(list(read_safetensors(shard).items())[1:])
    write_safetensors(shard, kept)


def unknown_numbers(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F8X"'))


def graph(path: str = GRAPH, *, rewrite: Callable[[onnx.ModelProto], None] | None = None) -> Change:
    """Bring a graph of the weights in their place."""

    def change(folder: Path) -> None:
        model = onnx.load(str(folder / ".converted" / GRAPH))
        model.producer_name = "another"
        if rewrite is not None:
            rewrite(model)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(model.SerializeToString())
        (folder / WEIGHTS).unlink()

    return change


def other_names(model: onnx.ModelProto) -> None:
    """Name the inputs and the output as no exporter does."""
    new = {"input_ids": "tokens_in", "attention_mask": "mask", "logits": "scores"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = new.get(name, name)
    for value in (*model.graph.input, *model.graph.output):
        value.name = new.get(value.name, value.name)


def static_axes(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, (1, 64), strict=True):
            dimension.dim_value = size


def nan_weight(model: onnx.ModelProto) -> None:
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    values = numpy_helper.to_array(tensor).copy()
    values.flat[-1] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def external(folder: Path) -> None:
    """Keep the weights of a graph in a file beside it."""
    graph()(folder)
    model = onnx.load(str(folder / GRAPH))
    external_data_helper.convert_model_to_external_data(
        model, location="big.bin", size_threshold=1024
    )
    onnx.save(model, str(folder / GRAPH))


def more_tokens(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    token = dict(tokenizer["added_tokens"][0], id=800, content="<mine>")
    tokenizer["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def head_without_layer(folder: Path) -> None:
    edit("config.json", architectures=["BertModel"])(folder)


def manifest(text: str) -> Change:
    return write("model.yaml", text.encode())
