"""Converts a Hugging Face folder to a revision of a model repository."""

import shutil
import tempfile
from pathlib import Path

from backends.errors import StartProblem
from backends.model_tools.graphs.checkpoint import FAMILIES, build_checkpoint
from backends.model_tools.graphs.weights import Weights, WeightsError
from backends.model_tools.importing.device_forms import write_forms
from backends.model_tools.importing.export import export
from backends.model_tools.importing.rebuild import rebuild
from backends.model_tools.importing.source import CheckpointFolder, open_source

# Files from which the rest is inferred: task, labels, lengths, pooling.
_KEPT = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)
# Graphs over 2 GB keep their weights in files of these names beside them.
_BESIDE = ("model.onnx_data", "model.onnx.data")


def convert(folder: Path, target: Path) -> str:
    """Write `model.onnx` and what describes it to `target`; return what the graph was made of.

    Raises:
        StartProblem: the folder holds no model, or one that no graph can be built of here.
    """
    source = open_source(folder)
    target.mkdir(parents=True, exist_ok=True)
    origin, weights = _write_graph(source, target)
    if weights is not None:
        write_forms(target / "model.onnx", source.config, weights, source.pooling())
    for name in _KEPT:
        if (folder / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, target / name)
    return origin


def _copy_graph(graph: Path, target: Path) -> None:
    shutil.copyfile(graph, target / "model.onnx")
    for name in _BESIDE:
        if (graph.parent / name).is_file():
            shutil.copyfile(graph.parent / name, target / name)


def _write_graph(source: CheckpointFolder, target: Path) -> tuple[str, Weights | None]:
    """Return what the graph was made of, and the weights where it was built of them."""
    kind = str(source.config.get("model_type"))
    if source.graph is not None:
        name = f"the graph `{source.graph.relative_to(source.folder)}`"
        try:
            model, weights = rebuild(source, source.graph)
        except WeightsError as error:
            _copy_graph(source.graph, target)
            return f"{name}, as it is: {error}", None
        (target / "model.onnx").write_bytes(model.SerializeToString())
        return f"{name}, rebuilt as a `{kind}`", weights
    if kind not in FAMILIES:
        with tempfile.TemporaryDirectory() as exported:
            export(source.folder, source.config, Path(exported))
            _copy_graph(Path(exported, "model.onnx"), target)
        return f"`{kind}` weights, exported by optimum", None
    weights = source.weights()
    try:
        model = build_checkpoint(source.config, weights, pooling=source.pooling())
    except WeightsError as error:
        raise StartProblem(f"`{source.folder}`: {error}") from None
    (target / "model.onnx").write_bytes(model.SerializeToString())
    return f"`{kind}` weights", weights
